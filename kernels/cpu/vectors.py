"""The two inner loops of spmm as vector code: weighted rows added to a float32 row, and edges located.

The compiler's own vectoriser would check at run time that rows do not overlap, read a few lanes of each row in turn, and
handle the end of a width like 47 or 100 one element at a time. Here the running sum of a tile of 64 features stays in
registers while each row's tile is read. The remaining features are one masked vector.

LLVM splits the 16-lane vectors into the processor's own. Sums are taken in the order of the rows, with fused multiply-add.
"""

from contextlib import contextmanager

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .intrinsics import call

LANES = 16
TILE = 64

_F32, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_F32, LANES)
_ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}


def _bytes(element: ir.Type) -> int:
    return 4 if element is _F32 else 2


def _load(builder, address, element, mask):
    vector = ir.VectorType(element, LANES)
    where = builder.inttoptr(address, vector.as_pointer())
    if mask is None:
        return builder.load(where, align=_bytes(element), typ=vector)
    name = f"llvm.masked.load.v{LANES}{'f32' if element is _F32 else 'i16'}.p0"
    return call(builder, name, vector, [where, _I32(_bytes(element)), mask, ir.Constant(vector, None)])


def _store(builder, address, value, mask):
    where = builder.inttoptr(address, _VECTOR.as_pointer())
    if mask is None:
        builder.store(value, where, align=4)
    else:
        call(builder, f"llvm.masked.store.v{LANES}f32.p0", ir.VoidType(), [value, where, _I32(4), mask])


def _load_floats(builder, address, dtype, mask):
    if dtype == "float32":
        return _load(builder, address, _F32, mask)
    short = _load(builder, address, _I16, mask)
    if dtype == "float16":
        half = builder.bitcast(short, ir.VectorType(ir.HalfType(), LANES))
        return builder.fpext(half, _VECTOR)
    wide_type = ir.VectorType(_I32, LANES)
    wide = builder.zext(short, wide_type)
    return builder.bitcast(builder.shl(wide, ir.Constant(wide_type, [16] * LANES)), _VECTOR)


def _splat(builder, value, vector):
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def _add_tile(builder, total, sources, weights, dtype, d, vectors, mask):
    """total[d : d + vectors * LANES] += sum of weights * sources, all at feature d."""
    at_total = builder.add(total, builder.mul(d, _I64(4)))
    at_source = [builder.add(s, builder.mul(d, _I64(_ITEM[dtype]))) for s in sources]
    sums = [_load(builder, builder.add(at_total, _I64(4 * LANES * v)), _F32, mask) for v in range(vectors)]
    for address, weight in zip(at_source, weights, strict=True):
        for v in range(vectors):
            row = _load_floats(builder, builder.add(address, _I64(_ITEM[dtype] * LANES * v)), dtype, mask)
            sums[v] = call(builder, f"llvm.fma.v{LANES}f32", _VECTOR, [row, weight, sums[v]])
    for v in range(vectors):
        _store(builder, builder.add(at_total, _I64(4 * LANES * v)), sums[v], mask)


@contextmanager
def _steps(builder, position, width, step):
    """A loop over features d in steps while d + step <= width. It starts at ``position`` and stores its end there."""
    check, body, end = (builder.append_basic_block(name) for name in ("check", "body", "end"))
    builder.branch(check)
    builder.position_at_end(check)
    d = builder.load(position)
    builder.cbranch(builder.icmp_signed("<=", builder.add(d, _I64(step)), width), body, end)
    builder.position_at_end(body)
    yield d
    builder.store(builder.add(d, _I64(step)), position)
    builder.branch(check)
    builder.position_at_end(end)


def _adder(dtype: str, count: int):
    """add(total, width, count addresses, count weights): total += the sum of weight * row, for rows of this dtype."""

    def generate(context, builder, signature, arguments):
        total, width = arguments[0], arguments[1]
        sources, weights = arguments[2 : 2 + count], arguments[2 + count :]
        weights = [_splat(builder, w, _VECTOR) for w in weights]
        position = cgutils.alloca_once_value(builder, _I64(0))
        for step in (TILE, LANES):
            with _steps(builder, position, width, step) as d:
                _add_tile(builder, total, sources, weights, dtype, d, step // LANES, None)
        d = builder.load(position)
        left = builder.sub(width, d)
        with builder.if_then(builder.icmp_signed(">", left, _I64(0))):
            lane_type = ir.VectorType(_I32, LANES)
            lanes = ir.Constant(lane_type, list(range(LANES)))
            mask = builder.icmp_signed("<", lanes, _splat(builder, builder.trunc(left, _I32), lane_type))
            _add_tile(builder, total, sources, weights, dtype, d, 1, mask)
        return context.get_dummy_value()

    arguments = [types.int64, types.int64] + [types.int64] * count + [types.float32] * count
    signature = types.void(*arguments)
    if count == 1:

        @intrinsic
        def add(typing, total, width, a0, w0):
            return signature, generate
    else:

        @intrinsic
        def add(typing, total, width, a0, a1, a2, a3, w0, w1, w2, w3):
            return signature, generate

    return add


add_float32, add_four_float32 = _adder("float32", 1), _adder("float32", 4)
add_bfloat16, add_four_bfloat16 = _adder("bfloat16", 1), _adder("bfloat16", 4)
add_float16, add_four_float16 = _adder("float16", 1), _adder("float16", 4)


def _gather(builder, base, index, element, mask):
    """element[base + 4 * index] for each lane of an int64 index, 0 where masked off."""
    addresses = builder.add(_splat(builder, base, index.type), builder.mul(index, ir.Constant(index.type, [4] * LANES)))
    pointers = builder.inttoptr(addresses, ir.VectorType(cgutils.voidptr_t, LANES))
    vector = ir.VectorType(element, LANES)
    name = f"llvm.masked.gather.v{LANES}{'f32' if element is _F32 else 'i32'}.v{LANES}p0"
    return call(builder, name, vector, [pointers, _I32(4), mask, ir.Constant(vector, None)])


def _locator(column: ir.IntType, scaled: bool):
    """locate(col, position, col_scale, x, x_stride, x_dtype, history, history_stride, history_dtype, addresses, weights,
    dtypes, count): address, weight and dtype of the source rows of the next LANES edges; ``count`` of them are valid."""
    wide, lanes32 = ir.VectorType(_I64, LANES), ir.VectorType(_I32, LANES)

    def generate(context, builder, signature, arguments):
        (col, position, col_scale, x, x_stride, x_dtype, history, history_stride, history_dtype,
         addresses, weights, dtypes, count) = arguments  # fmt: skip
        lane = ir.Constant(lanes32, list(range(LANES)))
        mask = builder.icmp_signed("<", lane, _splat(builder, builder.trunc(count, _I32), lanes32))
        vector = ir.VectorType(column, LANES)
        name = f"llvm.masked.load.v{LANES}i{column.width}.p0"
        where = builder.inttoptr(col, vector.as_pointer())
        c = call(builder, name, vector, [where, _I32(column.width // 8), mask, ir.Constant(vector, None)])
        c = c if column is _I64 else builder.zext(c, wide)
        p = _gather(builder, position, c, _I32, mask)
        outside = builder.icmp_signed("<", p, ir.Constant(lanes32, None))
        row = builder.zext(builder.xor(p, builder.ashr(p, ir.Constant(lanes32, [31] * LANES))), wide)

        def choose(inner, outer):
            return builder.select(outside, _splat(builder, outer, wide), _splat(builder, inner, wide))

        address = builder.add(choose(x, history), builder.mul(row, choose(x_stride, history_stride)))
        dtype = builder.trunc(choose(x_dtype, history_dtype), lanes32)
        builder.store(address, builder.inttoptr(addresses, wide.as_pointer()), align=8)
        builder.store(dtype, builder.inttoptr(dtypes, lanes32.as_pointer()), align=4)
        weight = _gather(builder, col_scale, c, _F32, mask) if scaled else ir.Constant(_VECTOR, [1.0] * LANES)
        builder.store(weight, builder.inttoptr(weights, _VECTOR.as_pointer()), align=4)
        return context.get_dummy_value()

    @intrinsic
    def locate(typing, col, position, col_scale, x, x_stride, x_dtype, history, history_stride, history_dtype, addresses,
               weights, dtypes, count):  # fmt: skip
        return types.void(*[types.int64] * 13), generate

    return locate


locate_int32, locate_int32_scaled = _locator(_I32, False), _locator(_I32, True)
locate_int64, locate_int64_scaled = _locator(_I64, False), _locator(_I64, True)
