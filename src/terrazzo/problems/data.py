"""Small data sets that several examples share."""

import numpy as np


def coal_disasters() -> np.ndarray:
    """The numbers of coal-mining disasters in Britain, one a year from 1851 to 1962.

    Reference: Jarrett (1979), A note on the intervals between coal-mining disasters, Biometrika 66.

    >>> coal_disasters().shape, int(coal_disasters().sum())
    ((112,), 191)
    """
    return np.array([
        4, 5, 4, 0, 1, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 6, 3, 3, 5, 4, 5, 3, 1, 4, 4, 1, 5, 5, 3, 4, 2, 5,
        2, 2, 3, 4, 2, 1, 3, 2, 2, 1, 1, 1, 1, 3, 0, 0, 1, 0, 1, 1, 0, 0, 3, 1, 0, 3, 2, 2, 0, 1, 1, 1,
        0, 1, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 1, 1, 0, 2, 3, 3, 1, 1, 2, 1, 1, 1, 1, 2, 4, 2, 0, 0, 1, 4,
        0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0,
    ])  # fmt: skip
