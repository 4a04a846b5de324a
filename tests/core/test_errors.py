from watersmeet.core import errors


def test_every_error_is_shown_to_the_user_and_only_usage_exits_with_2():
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    assert len(kinds) >= 8 and all(issubclass(kind, errors.WatersmeetError) for kind in kinds)
    assert {kind.exit_code for kind in kinds if kind is not errors.UsageError} == {1}
    assert errors.UsageError.exit_code == 2
    # the tree in the module's docstring is complete
    assert all(kind.__name__ in errors.__doc__ for kind in kinds)
