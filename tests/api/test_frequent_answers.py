"""What flows are answered without the models has the bytes that the models make."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from api.answers import results_json, update_json
from api.schemas.common import rfc3339
from api.schemas.flows import FlowChangeUpdate, Results
from broker.calls import views
from broker.core.commands import Outcome, Result

TIMES = st.floats(0, 4e9)
NUMBERS = st.integers(0, 2**31 - 1)
EPOCHS = st.integers(0, 2**63 - 1)
VIEWS = st.builds(
    views.UpdateView,
    queue=st.just("orders"),
    flow_id=st.text(max_size=9),
    revision=EPOCHS,
    active=st.booleans(),
    draining=st.booleans(),
    now=TIMES,
    partitions=st.lists(
        st.builds(
            views.PartitionInUpdate,
            partition=NUMBERS,
            epoch=EPOCHS,
            state=st.sampled_from(["owned", "revoking", "retiring", "warming"]),
            position=st.none() | st.text(max_size=9),
            handed_over=st.none() | st.sampled_from(["initial", "graceful"]),
            deadline=st.none() | TIMES,
            key=st.none() | st.text(max_size=9),
            parents=st.none() | st.tuples(st.text(max_size=9)),
            cut=st.none() | st.text(max_size=9),
            reached_cut=st.none() | st.booleans(),
            waits_for=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
        ),
        max_size=3,
    ).map(tuple),
    resize=st.none() | st.integers(0, 9),
)
RESULTS = st.lists(
    st.builds(
        Result,
        partition=NUMBERS,
        outcome=st.sampled_from([outcome.value for outcome in Outcome]),
        current_epoch=st.none() | EPOCHS,
    ),
    max_size=3,
)


@given(VIEWS)
def test_a_view_is_written_as_its_model_writes_it(view: views.UpdateView) -> None:
    model = FlowChangeUpdate.model_validate(view)
    assert update_json(view) == model.model_dump_json(by_alias=True).encode()


@given(RESULTS, VIEWS)
def test_results_are_written_as_their_model_writes_them(
    results: list[Result], view: views.UpdateView
) -> None:
    done = views.ResultsView(tuple(results), view)
    model = Results.model_validate(done)
    assert results_json(done) == model.model_dump_json(by_alias=True).encode()


@given(TIMES)
def test_a_time_is_written_to_the_millisecond(time: float) -> None:
    exact = datetime.fromtimestamp(time, UTC)
    assert rfc3339(time) == f"{exact:%Y-%m-%dT%H:%M:%S}.{exact.microsecond // 1000:03}Z"
