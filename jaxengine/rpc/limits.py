"""How much of a sampling option one request may carry: the device keeps room for so many, and none for more.

A message holds what is listed with a prompt, and with those that were begun in the same step, which may be as much: 11
bytes for each alternative, 185 MB of the 256 that it may have.
"""

MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 300  # ids, be it with a bias or as the only ones allowed
MAX_BAD_WORDS = 128  # sequences of ids
MAX_BAD_WORD_IDS = 8  # ids of one
# Likeliest ids listed beside a token, where the engine is started for so many; beside new ones also WHOLE_VOCABULARY.
MAX_ALTERNATIVES = 1000
WHOLE_VOCABULARY = -1
MAX_LISTED_ALTERNATIVES = 1 << 23  # of them with one prompt
