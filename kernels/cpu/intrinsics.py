"""Intrinsics that Numba lacks: addresses, bit casts, half floats, atomics, prefetch."""

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

# The length of arrays over a bare address, whose real length is unknown. Bounds are not checked.
UNBOUNDED = 1 << 40


def call(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: list) -> ir.Value:
    """Emit a call of an LLVM intrinsic."""
    signature = ir.FunctionType(result, [value.type for value in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)


@intrinsic
def pointer(typing, address):
    """The address as a pointer that ``carray`` takes."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def next_ticket(typing, block):
    """block[0]++, atomically. Returns the value before."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", arguments[0], ir.IntType(64)(1), "monotonic")

    return types.int64(types.CPointer(types.int64)), generate


@intrinsic
def count_up(typing, address):
    """(*(int64 *)address)++, atomically. Returns the value before."""

    def generate(context, builder, signature, arguments):
        counter = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", counter, ir.IntType(64)(1), "monotonic")

    return types.int64(types.int64), generate


@intrinsic
def popcount(typing, word):
    def generate(context, builder, signature, arguments):
        return call(builder, "llvm.ctpop.i64", ir.IntType(64), list(arguments))

    return types.int64(types.uint64), generate


@intrinsic
def trailing_zeros(typing, word):
    """The index of the lowest set bit of a word that is not zero."""

    def generate(context, builder, signature, arguments):
        return call(builder, "llvm.cttz.i64", ir.IntType(64), [arguments[0], ir.IntType(1)(1)])

    return types.int64(types.uint64), generate


def _prefetcher(locality: int):
    @intrinsic
    def prefetch(typing, address):
        def generate(context, builder, signature, arguments):
            i32 = ir.IntType(32)
            line = builder.inttoptr(arguments[0], cgutils.voidptr_t)
            call(builder, "llvm.prefetch.p0", ir.VoidType(), [line, i32(0), i32(locality), i32(1)])
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return prefetch


prefetch_near = _prefetcher(3)  # into the first-level cache: a few bytes that are needed soon
prefetch = _prefetcher(2)  # into the second-level cache: rows, as the first level is too small for all of them


@intrinsic
def float_of_bits(typing, bits):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def bits_of_float(typing, value):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def double_of_word(typing, word):
    """The float64 that ``Task.launch`` packed into a word of the block."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def float_of_half(typing, bits):
    def generate(context, builder, signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def half_of_float(typing, value):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@njit(forceinline=True)
def f32_at(address):
    return carray(pointer(address), (UNBOUNDED,), np.float32)


@njit(forceinline=True)
def u16_at(address):
    return carray(pointer(address), (UNBOUNDED,), np.uint16)


def _element(numba_type, llvm_type: ir.Type):
    """(load, store) of one element at an address. Indexing an array would also allow for negative indices."""

    @intrinsic
    def load(typing, address):
        def generate(context, builder, signature, arguments):
            return builder.load(builder.inttoptr(arguments[0], llvm_type.as_pointer()), typ=llvm_type)

        return numba_type(types.int64), generate

    @intrinsic
    def store(typing, address, value):
        def generate(context, builder, signature, arguments):
            builder.store(arguments[1], builder.inttoptr(arguments[0], llvm_type.as_pointer()))
            return context.get_dummy_value()

        return types.void(types.int64, numba_type), generate

    return load, store


load_u16, store_u16 = _element(types.uint16, ir.IntType(16))
load_i32, store_i32 = _element(types.int32, ir.IntType(32))
load_i64, store_i64 = _element(types.int64, ir.IntType(64))
load_u64, store_u64 = _element(types.uint64, ir.IntType(64))
load_f32, store_f32 = _element(types.float32, ir.FloatType())


@njit(forceinline=True)
def load_index(address, wide, k):
    """Element k of an int64 (wide) or int32 array. The branch is the same for a whole launch: it costs nothing."""
    return load_i64(address + 8 * k) if wide else np.int64(load_i32(address + 4 * k))


@njit(forceinline=True)
def store_index(address, wide, k, value):
    """Element k of an int64 (wide) or int32 array = value."""
    if wide:
        store_i64(address + 8 * k, value)
    else:
        store_i32(address + 4 * k, np.int32(value))


@intrinsic
def stream_line(typing, target, source):
    """Copy 64 bytes to an aligned address past the caches: the line is not read before it is overwritten, and does not push
    out what is still needed. Visible to other threads after ``fence``."""

    def generate(context, builder, signature, arguments):
        line = ir.VectorType(ir.IntType(32), 16)
        target, source = (builder.inttoptr(address, line.as_pointer()) for address in arguments)
        store = builder.store(builder.load(source, align=1, typ=line), target, align=64)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def fence(typing):
    """What this thread has written is seen by others before anything it writes afterwards."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate
