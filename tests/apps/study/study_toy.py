"""A small study without any model: texts tell who wrote them, so that tests can see what a rater must not."""

from energylm.apps.study.design import Known, Pair, StudyDesign, item_id, write_study


def toy_study(folder, *, pairs=6, checks=4, models=("base", "joint"), qualification=4, **design):
    settings = {"qualification": {"items": qualification}, **design}
    chosen = StudyDesign.checked(settings)
    comparisons = [(a, b) for place, a in enumerate(models) for b in models[place + 1 :]]

    def known(kind, number):
        return Known(item_id("toy", kind, number), f"{kind} {number}:", "true end", "false end", models[0])

    return write_study(
        folder,
        design=chosen,
        models=models,
        comparisons=comparisons,
        pairs=[
            Pair(item_id("toy", "pair", number), f"prefix {number}:", f"{a} {number}", f"{b} {number}", a, b)
            for number, (a, b) in enumerate(names for _ in range(pairs) for names in comparisons)
        ],
        qualification=[known("qualification", number) for number in range(qualification)],
        checks=[known("check", number) for number in range(checks)],
        origin={"made by": "a test"},
    )


def right_side(item):
    """The answer to a comparison with a known answer; left for any other."""
    return "right" if item.right == "true end" else "left"


def answer_all(store, rater, choose=right_side, limit=10_000):
    """Let a rater answer until nothing comes any more; what was shown, in order."""
    seen = []
    for _ in range(limit):
        item = store.next_item(rater)
        if item is None:
            break
        assert store.answer(rater, item.id, choose(item), 1.0) == "stored"
        seen.append(item)
    return seen
