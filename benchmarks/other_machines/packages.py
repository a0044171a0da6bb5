"""The machine of `other_machines.machine`, as `transitions` and `python-statemachine` run it."""

from typing import Any

from inspan_core.session import Phase, RunPhase
from other_machines.machine import Facts, phase_transitions, run_transitions

PHASES = [phase.value for phase in Phase]
RUN_PHASES = [phase.value for phase in RunPhase]


def with_transitions() -> type[Facts]:
    """Build it with the package `transitions`.

    Raises:
        ImportError: The package is not installed.
    """
    from transitions import Machine

    def machine(states: list[str], attribute: str, rows: list[Any]) -> Machine:
        made = Machine(
            model=None,
            states=states,
            initial=states[0],
            auto_transitions=False,
            model_attribute=attribute,
        )
        for trigger, source, target, guard, action in rows:
            sources = states if source == "*" else [source]
            for each in sources:
                # Looked up by identity of the one model that is being worked.
                made.add_transition(
                    trigger,
                    each,
                    target,
                    conditions=[lambda facts, guard=guard: guard(facts)],
                    before=[lambda facts, action=action: action(facts)],
                )
        return made

    phases = machine(PHASES, "phase_state", phase_transitions())
    runs = machine(RUN_PHASES, "run_state", run_transitions())

    class Transitions(Facts):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            phases.add_model(self)
            runs.add_model(self)

        def fire(self, trigger: str) -> None:
            self.trigger_of_phase(trigger)
            self.climb_if_asked()

        def trigger_of_phase(self, trigger: str) -> None:
            getattr(self, trigger)(self)

        def fire_answer(self, trigger: str) -> None:
            getattr(self, trigger)(self)

        def forget(self) -> None:
            phases.remove_model(self)
            runs.remove_model(self)

    return Transitions


def with_python_statemachine() -> type[Facts]:
    """Build it with the package `python-statemachine`.

    Raises:
        ImportError: The package is not installed.
    """
    from statemachine import State, StateMachine

    def machine(states: list[str], rows: list[Any]) -> type[StateMachine]:
        made = {name: State(name, initial=name == states[0]) for name in states}
        events: dict[str, Any] = {}
        for trigger, source, target, guard, action in rows:
            for each in states if source == "*" else [source]:
                one = made[each].to(
                    made[target or each],
                    internal=target is None or target == each,
                    cond=lambda facts, guard=guard: guard(facts),
                    on=lambda facts, action=action: action(facts),
                )
                events[trigger] = events[trigger] | one if trigger in events else one
        body = {name.lower(): state for name, state in made.items()}
        return type(StateMachine)("Made", (StateMachine,), {**body, **events})

    phases = machine(PHASES, phase_transitions())
    runs = machine(RUN_PHASES, run_transitions())

    class PythonStateMachine(Facts):
        def __init__(self, name: str) -> None:
            super().__init__(name)
            self.phases, self.runs = phases(), runs()

        def fire(self, trigger: str) -> None:
            self.phases.send(trigger, facts=self)
            self.climb_if_asked()

        def fire_answer(self, trigger: str) -> None:
            self.runs.send(trigger, facts=self)

        def forget(self) -> None:
            """It keeps no list of its models."""

    return PythonStateMachine
