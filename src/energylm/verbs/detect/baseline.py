"""The baseline that every detector should beat: word counts and logistic regression (Radford & Wu 2019).

    score(text) = w · tf-idf(words and pairs of words) + b          the strength of L2 chosen on training texts held out

Use it     beside any number for a detector; it is fitted on the same training texts, in seconds, and not kept.
Relations  `bundles.detector` is what it is compared with.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from energylm.data.detection import MACHINE, LabelledText
from energylm.data.document import split_of

MOST_FEATURES = 1 << 18
STRENGTHS = (0.25, 1.0, 4.0, 16.0, 64.0)  # inverse of L2; Radford & Wu search 1/64 … 64
HELD_OUT = 0.2


def tfidf_scores(train: Sequence[LabelledText], test: Sequence[str], *, seed: int = 0) -> NDArray[np.float64]:
    """(N,) scores of the test texts; higher = machine, 0 = as likely as not."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, max_features=MOST_FEATURES, token_pattern=r"(?u)\w+|[^\w\s]"
    )
    features = vectorizer.fit_transform([text.text for text in train])
    is_machine = np.array([text.label == MACHINE for text in train])
    held_out = np.array(
        [split_of(text.group, valid_fraction=0.0, test_fraction=HELD_OUT, seed=2) == "test" for text in train]
    )

    def fitted(strength: float, rows: NDArray[np.bool_]) -> LogisticRegression:
        model = LogisticRegression(C=strength, class_weight="balanced", max_iter=1000, random_state=seed)
        return model.fit(features[rows], is_machine[rows])

    def loss(strength: float) -> float:
        """Logistic loss of the held-out training texts, both classes weighing the same."""
        signs = np.where(is_machine[held_out], 1.0, -1.0)
        losses = np.logaddexp(0, -signs * fitted(strength, ~held_out).decision_function(features[held_out]))
        return float(losses[signs > 0].mean() + losses[signs < 0].mean())

    both = [len(set(is_machine[rows])) == 2 for rows in (held_out, ~held_out)]
    strength = min(STRENGTHS, key=loss) if all(both) else 1.0
    everything = np.ones(len(train), dtype=bool)
    return np.asarray(fitted(strength, everything).decision_function(vectorizer.transform(list(test))), np.float64)
