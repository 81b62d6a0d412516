import pytest

from tests.helpers.training_runs import config


class TestOpponents:
    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"opponents": "self:0"}, "must list each name once with a positive share"),
            ({"opponents": "self:0.5,radnom:0.5"}, "no scripted player called 'radnom'"),
            ({"matchmaking": "best"}, r"`matchmaking` \('best'\) must be one of"),
            (
                {"matchmaking": "pfsp-hard"},
                "`matchmaking` .* chooses among earlier selves, and `opponents` .* names no pool",
            ),
            ({"pool_every": 0}, r"`pool_every` \(0\) must be at least 1"),
            ({"pool_capacity": 0}, r"`pool_capacity` \(0\) must be at least 1"),
            ({"pool_start": -1}, r"`pool_start` \(-1\) must be at least 0"),
            ({"pool_eviction": "newest"}, r"`pool_eviction` \('newest'\) must be one of"),
            ({"pool_dtype": "int8"}, r"`pool_dtype` \('int8'\) must be float32"),
            ({"endpoint_kwargs": {"max_tokens": 0}}, r"`max_tokens` \(0\) must be at least 1"),
            ({"endpoint_kwargs": {"timeout": 0}}, r"`timeout` \(0\) must be a number of seconds above 0"),
            ({"endpoint_kwargs": '{"timeout": Infinity}'}, r"`timeout` \(inf\) must be a number of seconds above 0"),
            ({"endpoint_kwargs": {"time": 1}}, "`endpoint_kwargs` names 'time'; it takes api_key_env, .*, timeout"),
        ],
    )
    def test_refuses_values_that_are_out_of_range(self, changes, sentence, tmp_path):
        with pytest.raises(ValueError, match=sentence):
            config(tmp_path, **changes)
