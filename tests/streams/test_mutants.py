"""Each dependency that Streams takes care of is needed, and the checker notices if it is not there."""

import rest_triton.history.streams
from tests.streams.ordering import check

from .mutants import installed, mutants
from .programs import Everything, recorded


def test_no_dependency_can_be_left_out() -> None:
    seen = []
    for what, mutant in mutants(rest_triton.history.streams, ["Streams"]):
        with installed(rest_triton.history.streams, mutant):
            assert check(recorded(Everything()).log) != [], what
        seen.append(what.split(" without ")[1])
    assert sorted(seen) == [
        "reads=reads",
        "self._record_stream(tensor)",
        "self._remember(self._mark(), reads, writes)",
        "self._wait(event)",
        "self._wait(resource.written)",
        "self._wait(resource.written)",
        "self._wait(handed)",
        "self._wait_for(stream, reads, writes)",
        "writes=writes",
    ]
    assert check(recorded(Everything()).log) == []  # the module is as it was


def test_what_is_left_out_of_a_call(tmp_path, monkeypatch) -> None:
    """Elements of lists one by one, other values whole; in the classes that were asked for; functions wrapped in any way."""
    (tmp_path / "made_up.py").write_text(
        "from contextlib import contextmanager\n"
        "def top(streams, a, b):\n"
        "    return streams.submit('io', lambda: 1, reads=[a, b], inputs=a)\n"
        "class Store:\n"
        "    @staticmethod\n"
        "    def still(streams, a):\n"
        "        return streams.submit_io(None, writes=(a,))\n"
        "    @property\n"
        "    def owned(self):\n"
        "        return self.streams.submit('io', None, writes=[self])\n"
        "    @contextmanager\n"
        "    def inside(self, streams):\n"
        "        yield streams.submit('io', None, reads=[self])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import made_up

    class Said:
        def submit(self, *args: object, **dependencies: object) -> dict[str, object]:
            return dependencies

        def submit_io(self, *args: object, **dependencies: object) -> dict[str, object]:
            return dependencies

    said = Said()

    def calls() -> list[object]:
        store = made_up.Store()
        store.streams = said
        with store.inside(said) as inside:
            return [
                made_up.top(said, 1, 2), store.still(said, 3), store.owned != {"writes": []}, inside != {"reads": []},
            ]  # fmt: skip

    whole = calls()
    assert whole == [{"reads": [1, 2], "takes": 1}, {"writes": (3,)}, True, True]
    results = []
    for _, mutant in mutants(made_up):
        with installed(made_up, mutant):
            results.append([(n, now) for n, (now, then) in enumerate(zip(calls(), whole, strict=True)) if now != then])
        assert calls() == whole
    assert results == [
        [(0, {"reads": [2], "takes": 1})],
        [(0, {"reads": [1], "takes": 1})],
        [(0, {"reads": [1, 2]})],
        [(1, {"writes": ()})],
        [(2, False)],
        [(3, False)],
    ]
    assert next(mutants(made_up, ["top"]))[0] == "line 3 without a in reads"
    assert len(list(mutants(made_up, ["Store"]))) == 3
