"""Train, valid or test by a hash of the document's content: adding documents never moves others.

    u = blake2b(seed, first 131,072 characters) / 2⁶⁴      test if u < t,  valid if u < t + v,  else train

Equal documents always fall into the same split, so a duplicate never leaks from train into test; and changing the valid
fraction moves nothing in or out of test. Bakhtin et al. 2019 §4.1 ask for distinct splits and do not say how.
"""

import hashlib
from typing import Literal

from energylm.data.document import LEADING_CHARACTERS

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


def split_of(text_start: str, *, valid_fraction: float, test_fraction: float, seed: int) -> Split:
    """The split of a document that begins with `text_start`."""
    content = text_start[:LEADING_CHARACTERS].encode()
    digest = hashlib.blake2b(content, digest_size=8, key=seed.to_bytes(8, "big")).digest()
    u = (int.from_bytes(digest, "big") >> 11) / 2**53  # 53 bits: a float64 below 1, always
    if u < test_fraction:
        return "test"
    return "valid" if u < test_fraction + valid_fraction else "train"
