"""Each dependency that Streams takes care of is needed, and the checker notices if it is not there."""

import rest_triton.history.streams as module

from .mutants import installed, mutants
from .ordering import check
from .programs import Everything, recorded


def test_no_dependency_can_be_left_out() -> None:
    seen = []
    for what, mutant in mutants(module, ["Streams"]):
        with installed(module, mutant):
            assert check(recorded(Everything()).log) != [], what
        seen.append(what.split(" without ")[1])
    assert len(seen) >= 7 and {"self._wait(event)", "self._wait(handed)", "self._record_stream(tensor)"} <= set(seen)
    assert check(recorded(Everything()).log) == []  # the module is as it was


def test_what_is_left_out_of_a_call(tmp_path, monkeypatch) -> None:
    """Elements of lists one by one, other values whole; in the classes that were asked for; functions wrapped in any way."""
    (tmp_path / "made_up.py").write_text(
        "def top(streams, a, b):\n"
        "    return streams.submit('io', lambda: 1, reads=[a, b], inputs=a)\n"
        "class Store:\n"
        "    @staticmethod\n"
        "    def still(streams, a):\n"
        "        return streams.submit_io(None, writes=(a,))\n"
        "    @property\n"
        "    def owned(self):\n"
        "        return self.streams.submit('io', None, writes=[1])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import made_up

    class Said:
        def submit(self, *args: object, **dependencies: object) -> dict[str, object]:
            return dependencies

        submit_io = submit

    def calls() -> list[object]:
        store = made_up.Store()
        store.streams = Said()
        return [made_up.top(Said(), 1, 2), store.still(Said(), 3), store.owned]

    whole = calls()
    assert whole == [{"reads": [1, 2], "inputs": 1}, {"writes": (3,)}, {"writes": [1]}]
    results = []
    for _, mutant in mutants(made_up):
        with installed(made_up, mutant):
            results.append([now for now, then in zip(calls(), whole, strict=True) if now != then])
        assert calls() == whole
    assert results == [
        [{"reads": [2], "inputs": 1}], [{"reads": [1], "inputs": 1}], [{"reads": [1, 2]}],
        [{"writes": ()}], [{"writes": []}],
    ]  # fmt: skip
    assert next(mutants(made_up, ["top"]))[0] == "line 2 without a in reads"
    assert len(list(mutants(made_up, ["Store"]))) == 2
