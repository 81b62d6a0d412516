import pytest

import trl_spiral


class TestExports:
    @pytest.mark.parametrize("name", trl_spiral.__all__)
    def test_every_public_name_can_be_imported(self, name):
        assert getattr(trl_spiral, name) is not None

    def test_every_public_name_is_the_one_that_its_module_defines(self):
        for name in set(trl_spiral.__all__) - {"__version__"}:
            assert getattr(trl_spiral, name).__name__ == name

    def test_are_all_that_dir_lists(self):
        assert dir(trl_spiral) == sorted(trl_spiral.__all__)

    def test_an_unknown_name_is_told_so(self):
        with pytest.raises(AttributeError, match="'trl_spiral' has no attribute 'SpiralTraner'"):
            trl_spiral.SpiralTraner  # noqa: B018
