"""Keys of a run that answers don't have: those of pairs."""

from moray.tasks.preference.checks import faults as faults
