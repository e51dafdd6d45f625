from foredraft.core.history import History


def contents(history):
    tokens, counts = history.arrays()
    return dict(zip(tokens.tolist(), counts.tolist(), strict=True))


def test_prompt_tokens_are_seen_but_not_written():
    history = History([5, 5, 7])
    assert contents(history) == {5: 0, 7: 0}
    history.add([7, 8, 8])
    assert contents(history) == {5: 0, 7: 1, 8: 2}


def test_a_drafted_path_leaves_no_trace():
    history = History([5])
    history.add([6])
    assert dict(history.after([5, 6, 9])) == {5: 1, 6: 2, 9: 1}
    assert dict(history.after([])) == contents(history) == {5: 0, 6: 1}


def test_arrays_are_kept_until_the_history_grows():
    history = History([1])
    assert history.arrays() is history.arrays()
    before = history.arrays()
    history.add([2])
    assert history.arrays() is not before and contents(history) == {1: 0, 2: 1}


def test_an_empty_history_has_empty_arrays():
    tokens, counts = History().arrays()
    assert tokens.tolist() == counts.tolist() == []
