"""The request of a mixture: what it asks for, and what it refuses."""

import pytest

from brimful.errors import SettingsError
from brimful.mixtures import Mixture
from brimful.plan import PlanSettings


@pytest.mark.parametrize(("temperature", "share"), [(1, 0.9), (2, 0.75), (float("inf"), 0.5), (0.5, 81 / 82)])
def test_a_temperature_evens_out(temperature, share):
    """Without it a small source of a hundred is never seen."""
    assert Mixture(weights={"a": 9, "b": 1}, temperature=temperature).shares["a"] == pytest.approx(share)


def test_limits_are_the_smaller_of_samples_and_passes():
    """Without it the second limit would be forgotten."""
    mixture = Mixture(weights={"a": 1, "b": 1}, max_samples={"a": 7}, max_passes={"a": 0.5, "b": 2})
    assert [mixture.allowance("a", 10), mixture.allowance("b", 10)] == [5, 20]
    assert Mixture(weights={"a": 1}).allowance("a", 10) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": {}}, "no sources"),
        ({"weights": {"a": -1}}, "weight of a must be"),
        ({"weights": {"a": 0}}, "all weights are 0"),
        ({"weights": {"a": float("nan")}}, "weight of a must be"),
        ({"weights": {"a": True}}, "weight of a must be"),
        ({"weights": {"a": 1}, "unit": "bytes"}, "mixture 'bytes' is unknown: use one of samples, tokens for unit"),
        ({"weights": {"a": 1}, "stop": "never"}, "mixture 'never' is unknown: .* for stop"),
        ({"weights": {"a": 1}, "temperature": 0}, "temperature must be"),
        ({"weights": {"a": 1}, "num_tokens": 5, "num_packs": 2}, "num_tokens and num_packs all end an epoch"),
        ({"weights": {"a": 1}, "num_packs": 0}, "num_packs must be a whole number of at least 1"),
        ({"weights": {"a": 1}, "max_passes": {"b": 1}}, "max_passes names b"),
        ({"weights": {"a": 1}, "max_samples": {"a": 0}}, "max_samples of a must be above 0"),
        ({"weights": {"a": 1}, "replacement": 1}, "replacement must be true or false"),
        ({"weights": {"a": 1}, "max_passes": {"a": float("inf")}}, "max_passes of a must be above 0 and is inf"),
        ({"weights": {"a": float("inf")}}, "weight of a must be a number of at least 0 and is inf"),
        *(
            ({"weights": {"a": 1}, "weighting": "loss", **more}, "weighting loss packs every sample once")
            for more in (
                *({"num_packs": 3}, {"stop": "all_exhausted"}, {"replacement": True}),
                *({"max_samples": {"a": 1}}, {"max_passes": {"a": 1}}),
            )
        ),
    ],
)
def test_impossible_requests_are_refused_by_name(options, message):
    """Without it a typo trains on another mix."""
    with pytest.raises(SettingsError, match=message):
        Mixture(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "concat_split"}, "draws whole ones"),
        (
            {"overflow": "split", "draw": Mixture(weights={"a": 1}, num_packs=2)},
            "parts of a sample in several packs",
        ),
        ({"overflow": "split", "draw": Mixture(weights={"a": 1}, order="pack_then_mix")}, "parts of a sample"),
        ({"algorithm": "spread", "num_packs": 2}, "give num_packs there"),
        ({"draw": {"a": 1}}, "draw"),
        ({"share": "prefixes"}, "packs each sample once, and mixture draws some more often"),
    ],
)
def test_settings_that_contradict_a_mixture_are_refused(options, message):
    """Without it half a sample is drawn, or a number of packs is not kept."""
    with pytest.raises(SettingsError, match=message):
        PlanSettings(**{"capacity": 8, "draw": Mixture(weights={"a": 1}), **options})


def test_a_request_survives_its_record():
    """Without it a saved plan opens with another mixture."""
    mixture = Mixture(weights={"a": 1, "b": 0}, unit="tokens", max_passes={"a": 2}, num_packs=3, order="pack_then_mix")
    settings = PlanSettings(capacity=8, draw=mixture)
    assert PlanSettings.of_record(settings.as_dict()) == settings
    assert Mixture(weights={"a": 1}).as_dict() == {"weights": {"a": 1.0}}
