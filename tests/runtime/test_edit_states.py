"""Random edits in random order: the session computes what one does that is made of the saved model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.runtime.edited_net import HEAD, X, net, parsed

from sardonyx import Node, Session
from sardonyx.errors import SardonyxError
from sardonyx.model import to_proto

UNARY = ("Neg", "Abs", "Sigmoid", "Identity", "Relu")
BINARY = ("Add", "Sub", "Mul", "Max")


class Edited(RuleBasedStateMachine):
    """A session, and edits of whatever stands in it by then."""

    compile = "off"

    def __init__(self) -> None:
        super().__init__()
        self.session = Session(net(), compile=self.compile)  # type: ignore[arg-type]
        self.undoable: list[bytes] = []
        self.changed = False

    def tensors(self) -> list[str]:
        graph = self.session.model.graph
        return [str(value.name) for value in (*graph.inputs, *(value for node in graph for value in node.outputs))]

    def nodes(self) -> list[str]:
        return [str(node.name) for node in self.session.model.graph]

    def edit(self, *changes: tuple[str, tuple[object, ...]]) -> None:
        """Make changes as one edit, or be refused and find all as it was."""
        before = to_proto(self.session.model).SerializeToString(deterministic=True)
        commits = len(self.session.history)
        try:
            with self.session.edit() as g:
                for name, arguments in changes:
                    getattr(g, name)(*arguments)
        except SardonyxError:
            assert to_proto(self.session.model).SerializeToString(deterministic=True) == before
            assert len(self.session.history) == commits
        else:
            assert len(self.session.history) == commits + 1
            self.undoable.append(before)
            self.changed = True

    @rule(data=st.data(), op=st.sampled_from(UNARY))
    def insert_after(self, data: st.DataObject, op: str) -> None:
        self.edit(("insert_after", (data.draw(st.sampled_from(self.tensors())), op)))

    @rule(data=st.data())
    def remove_node(self, data: st.DataObject) -> None:
        self.edit(("remove_node", (data.draw(st.sampled_from(self.nodes() or ["none"])),)))

    @rule(data=st.data(), op=st.sampled_from(BINARY), end=st.booleans())
    def add_node(self, data: st.DataObject, op: str, end: bool) -> None:
        inputs = [data.draw(st.sampled_from(self.tensors())) for _ in range(2)]
        name = f"new{len(self.session.history)}"
        changes: list[tuple[str, tuple[object, ...]]] = [("add_node", (Node(op, inputs, [name]),))]
        self.edit(*changes, *([("add_output", (name,))] if end else []))

    @rule(data=st.data(), op=st.sampled_from((*UNARY, *BINARY)))
    def replace_node(self, data: st.DataObject, op: str) -> None:
        self.edit(("replace_node", (data.draw(st.sampled_from(self.nodes() or ["none"])), Node(op))))

    @rule(data=st.data(), position=st.integers(0, 1))
    def rewire(self, data: st.DataObject, position: int) -> None:
        node = data.draw(st.sampled_from(self.nodes() or ["none"]))
        self.edit(("rewire", (node, position, data.draw(st.sampled_from(self.tensors())))))

    @rule(data=st.data())
    def add_output(self, data: st.DataObject) -> None:
        self.edit(("add_output", (data.draw(st.sampled_from(self.tensors())),)))

    @rule(data=st.data())
    def remove_output(self, data: st.DataObject) -> None:
        names = [info.name for info in self.session.get_outputs()]
        self.edit(("remove_output", (data.draw(st.sampled_from(names)),)))

    @rule(seed=st.integers(0, 9), name=st.sampled_from(["w", "b", "lost"]), columns=st.sampled_from([3, 3, 3, 5]))
    def set_weight(self, seed: int, name: str, columns: int) -> None:
        shape = (4, columns) if name == "w" else (columns,)
        self.edit(("set_weight", (name, np.random.default_rng(seed).standard_normal(shape).astype(np.float32))))

    @rule(data=st.data())
    def attach(self, data: st.DataObject) -> None:
        self.edit(("attach", (parsed(HEAD), data.draw(st.sampled_from(self.tensors())), "head")))

    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        self.edit(("detach", (data.draw(st.sampled_from(["head", *self.tensors()])),)))

    @rule()
    def undo(self) -> None:
        if self.undoable:
            self.session.undo()
            actual = to_proto(self.session.model).SerializeToString(deterministic=True)
            assert actual == self.undoable.pop()
            self.changed = True

    @invariant()
    def computes_what_the_saved_model_does(self) -> None:
        if not self.changed:
            return
        self.changed = False
        again = Session(to_proto(self.session.model), compile="off")
        feeds = {info.name: X for info in self.session.get_inputs()}
        names = [info.name for info in self.session.get_outputs()]
        assert [info.name for info in again.get_outputs()] == names
        try:
            expected = again.run(None, feeds)
        except SardonyxError as error:  # Sizes that may agree, and do not.
            with pytest.raises(type(error)):
                self.session.run(None, feeds)
            return
        for a, b in zip(self.session.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


class EditedAndCompiled(Edited):
    """The same on compiled code."""

    compile = "wait"


def tried(machine: type[Edited], examples: int, steps: int) -> None:
    options = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, derandomize=True,
        suppress_health_check=list(HealthCheck), database=None, phases=[Phase.generate],
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=options)


def test_random_edits_on_numpy() -> None:
    tried(Edited, 25, 12)


def test_random_edits_on_compiled_code() -> None:
    tried(EditedAndCompiled, 6, 10)


@pytest.mark.long
@pytest.mark.parametrize("machine", [Edited, EditedAndCompiled])
def test_many_random_edits(machine: type[Edited]) -> None:
    tried(machine, 300, 30)
