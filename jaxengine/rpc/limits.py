"""Limits of one request's sampling options: the device's arrays are sized for them. And of what it is answered.

A message may list `MAX_LISTED_ALTERNATIVES` with a prompt or the beams of a search, and as many again with others of
the same step. At 11 bytes each that is 185 MB, within the 256 MB that a message may have. The logits of a prompt are
counted as the alternatives that would take their place. The patches of a prompt's images come in the message that asks
for them to be read, beside at most a million ids of up to 5 bytes.
"""

MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 300  # ids, with a bias or as the only ones allowed
MAX_BAD_WORDS = 128  # sequences of ids
MAX_BAD_WORD_IDS = 8  # ids of one of them
MAX_LOOK_BACK = 8192  # ids that samplers look back: a repetition that is further away is none
MAX_REPEAT = 128  # ids of a repetition
MAX_BEAMS = 64  # of one beam search, if the engine has so many slots
MAX_LENGTH_PENALTY = 10
# Alternatives listed with a token, if the engine is started for so many. New tokens may also have WHOLE_VOCABULARY.
MAX_ALTERNATIVES = 1000
WHOLE_VOCABULARY = -1
MAX_LISTED_ALTERNATIVES = 1 << 23  # with all tokens of one prompt, or of all beams of one search
ALTERNATIVE_BYTES = 11  # of a message
MAX_LOGITS_BYTES = 64 << 20  # of one prompt
IMAGE_DIGEST_BYTES = 32
MAX_IMAGES = 64  # of one prompt
MAX_PATCH_BYTES = 192 << 20  # of all images of one prompt
# In what patches are sent, and bytes of a number.
PATCH_DTYPES = {"float32": 4, "bfloat16": 2}
