"""`Recognize` of Ray Data on a GPU."""

import pytest

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore")]  # warnings of Ray


def test_actors_that_share_a_gpu():
    """Two actors with half a GPU each find what one process finds on it."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")

    from nestree.integrations.ray import Recognize, put_model
    from nestree.pipeline import load

    places = [a + b for a in ("Port", "New", "Saint ") for b in ("land", "ton", "bury", "ford")]
    texts = [f"The mayor of {p} met {n} members of the city council." for p in places for n in range(20)]
    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    try:
        rows = (
            ray.data.from_items([{"text": text} for text in texts])
            .map_batches(
                Recognize,
                fn_constructor_args=[put_model()],
                batch_format="pyarrow",
                batch_size=60,
                num_gpus=0.5,
                compute=ray.data.ActorPoolStrategy(size=2),
            )
            .take_all()
        )
    finally:
        ray.shutdown()
    found = {row["text"]: row for row in rows}
    pipeline = load(device="cuda")
    for text in texts:
        entities = [e for s in pipeline(text).sentences for e in s.entities]
        row = found.pop(text)
        assert row["error"] is None
        assert [e["label"] for e in row["entities"]] == [e.label for e in entities]
        assert [e["score"] for e in row["entities"]] == pytest.approx([e.score for e in entities], abs=0.02)
        assert entities
    assert not found
