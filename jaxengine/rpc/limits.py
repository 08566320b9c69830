"""How much of a sampling option one request may carry: the device keeps room for so many, and none for more."""

MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 300  # ids, be it with a bias or as the only ones allowed
MAX_BAD_WORDS = 128  # sequences of ids
MAX_BAD_WORD = 8  # ids of one
