"""What parts of results that are of one machine have in common. US dollars and hours are floats."""

from vlmplan.api.record import Record, Value


class OnMachine(Record):
    """Something on GPUs of one kind."""

    gpu = Value[str]("The GPU by its name in the catalog.")

    @property
    def num_gpus(self) -> int:
        """GPUs in all, over all machines."""
        return self._values["num_gpus"] * self._values["num_nodes"]


class Timed(Record):
    """A run with its time and price."""

    hours = Value[float | None]("Hours of training; None where nothing fits or a speed is not known.")
    usd = Value[float | None](
        "For the whole run: start-up, download, training, checkpoints and disk; None where nothing fits, or price or "
        "speed is not known."
    )


class Priced(Timed):
    """A run on a machine that has a price."""

    usd_per_hour = Value[float | None]("US dollars an hour of all machines together; None where no price is known.")
