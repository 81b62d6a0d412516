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
                "`matchmaking` .* chooses among snapshots, and `opponents` .* contains no pool",
            ),
            ({"pool_every": 0}, r"`pool_every` \(0\) must be at least 1"),
            ({"pool_capacity": 0}, r"`pool_capacity` \(0\) must be at least 1"),
            ({"pool_kwargs": {"start": -1}}, r"`start` \(-1\) in `pool_kwargs` must be at least 0"),
            ({"pool_kwargs": {"eviction": "newest"}}, r"`eviction` \('newest'\) in `pool_kwargs` must be one of"),
            ({"pool_kwargs": '{"dtype": "int8"}'}, r"`dtype` \('int8'\) in `pool_kwargs` must be float32"),
            (
                {"pool_kwargs": {"size": 1}},
                "`pool_kwargs` names 'size'; it takes start, eviction, dtype, rating_games, repair",
            ),
            ({"endpoint_kwargs": {"max_tokens": 0}}, r"`max_tokens` \(0\) must be at least 1"),
            ({"endpoint_kwargs": {"timeout": 0}}, r"`timeout` \(0\) must be a number of seconds above 0"),
            ({"endpoint_kwargs": '{"timeout": Infinity}'}, r"`timeout` \(inf\) must be a number of seconds above 0"),
            ({"endpoint_kwargs": {"time": 1}}, "`endpoint_kwargs` names 'time'; it takes api_key_env, .*, timeout"),
        ],
    )
    def test_refuses_values_that_are_out_of_range(self, changes, sentence, tmp_path):
        with pytest.raises(ValueError, match=sentence):
            config(tmp_path, **changes)
