from tests.counterpoise.logs.conftest import append, texts


def test_what_was_appended_is_read(log):
    append(log, "a", "b")
    assert texts(log, 0) == ["a", "b"]
