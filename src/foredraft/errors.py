"""Every error a user of foredraft can cause or meet.

    ForedraftError
    ├── UsageError           a wrong option or value (the command line exits with 2; all others exit with 1)
    ├── ModelNotFoundError   no model of that name, or no file at that path
    ├── ModelFileError       the file is truncated, corrupt or hostile
    ├── UnsupportedModelError    the file is sound, but of a family or format that is not supported
    ├── DownloadError        a model could not be fetched, or what came is not what was expected
    ├── ContextError         the prompt does not fit into the context, or the key-value cache is full
    ├── OutOfMemoryError     the machine has not enough memory for what was asked
    ├── TokenError           a token id outside the vocabulary
    ├── NumericsError        the model computed logits that no token can be picked from
    ├── MeasurementError     a peer or a helper process did not do, or did not say, what is to be measured
    ├── QueueFullError       a server has as many requests waiting as it may
    ├── ClosedError          a server is ending, or has ended
    └── TemplateError        the chat template is missing, broken or refuses the messages

A message says what is wrong, the value, the likely cause and what to do.
"""


class ForedraftError(Exception):
    """The root: catch this to catch whatever foredraft raises on purpose."""


class UsageError(ForedraftError):
    """A wrong option or value."""


class ModelNotFoundError(ForedraftError):
    """No model of that name, or no file at that path."""


class ModelFileError(ForedraftError):
    """The file is truncated, corrupt or hostile."""


class UnsupportedModelError(ForedraftError):
    """The file is sound, but of a family or format that is not supported."""


class DownloadError(ForedraftError):
    """A model could not be fetched, or what came is not what was expected."""


class ContextError(ForedraftError):
    """The prompt does not fit into the context, or the key-value cache is full."""


class OutOfMemoryError(ForedraftError):
    """The machine has not enough memory for what was asked."""


class TokenError(ForedraftError):
    """A token id outside the vocabulary."""


class NumericsError(ForedraftError):
    """The model computed logits that no token can be picked from."""


class MeasurementError(ForedraftError):
    """A peer or a helper process did not do, or did not say, what is to be measured."""


class TemplateError(ForedraftError):
    """The chat template is missing, broken or refuses the messages."""


class QueueFullError(ForedraftError):
    """As many requests wait as may; try again later."""


class ClosedError(ForedraftError):
    """No requests are taken any more."""
