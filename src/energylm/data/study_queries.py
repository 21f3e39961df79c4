"""The statements of the study's store, built once: building one costs more than SQLite takes to answer it.

TURNS, TURN       what a rater was handed, in order; one item of it
TAKEN, HANDS      pairs that want no more hands; hands on one pair
OLDEST            who has left a pair lying longest
VOTES             votes on each pair
ALL_ANSWERS       everything that was answered, in order
HAND_OUT, STORE, TOUCH, RELEASE   what is written
"""

from sqlalchemy import bindparam, func, insert, or_, select, update

from energylm.data.study_tables import ANSWERS, ASSIGNMENTS, RATERS

_BOTH = ASSIGNMENTS.outerjoin(ANSWERS, ANSWERS.c.assignment_id == ASSIGNMENTS.c.id)
_IS_MINE = ASSIGNMENTS.c.rater_id == bindparam("rater")
_IS_ITEM = ASSIGNMENTS.c.item == bindparam("item")
_IS_ANSWERED, _IS_KEPT = ANSWERS.c.id.is_not(None), ASSIGNMENTS.c.released_at.is_(None)
TURNS = (
    select(ASSIGNMENTS, ANSWERS.c.choice, ANSWERS.c.answered_at)
    .select_from(_BOTH)
    .where(_IS_MINE)
    .order_by(ASSIGNMENTS.c.position)
)
TURN = TURNS.where(_IS_ITEM)
HANDS = select(func.count()).select_from(_BOTH).where(_IS_ITEM, _IS_KEPT)
TAKEN = (
    select(ASSIGNMENTS.c.item)
    .select_from(_BOTH)
    .where(ASSIGNMENTS.c.kind == "pair", _IS_KEPT, or_(_IS_ANSWERED, ASSIGNMENTS.c.touched_at > bindparam("since")))
    .group_by(ASSIGNMENTS.c.item)
    .having(func.count() >= bindparam("most"))
)
OLDEST = (
    select(ASSIGNMENTS.c.id)
    .select_from(_BOTH)
    .where(_IS_ITEM, _IS_KEPT, ~_IS_ANSWERED)
    .order_by(ASSIGNMENTS.c.touched_at)
    .limit(1)
)
VOTES = (
    select(ASSIGNMENTS.c.item, func.count().label("votes"))
    .select_from(_BOTH)
    .where(ASSIGNMENTS.c.kind == "pair", _IS_ANSWERED)
    .group_by(ASSIGNMENTS.c.item)
)
ALL_ANSWERS = (
    select(ASSIGNMENTS, ANSWERS.c.choice, ANSWERS.c.seconds, ANSWERS.c.answered_at, RATERS.c.label)
    .select_from(_BOTH.join(RATERS, RATERS.c.id == ASSIGNMENTS.c.rater_id))
    .where(_IS_ANSWERED)
    .order_by(ANSWERS.c.id)
)
HAND_OUT, STORE = insert(ASSIGNMENTS), insert(ANSWERS)
_CHANGE = update(ASSIGNMENTS).where(ASSIGNMENTS.c.id == bindparam("assignment"))
TOUCH = _CHANGE.values(touched_at=bindparam("now"))
RELEASE = _CHANGE.values(released_at=bindparam("now"))
