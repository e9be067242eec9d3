"""Everything this provider raises, in one tree below :class:`SlurmError`.

A message says what happened, quotes Slurm's own words, and says what to do next. Airflow decides about retries by
class: the ones that also derive from ``AirflowFailException`` end a task at once, whatever its ``retries`` say.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowException, AirflowFailException


class SlurmError(AirflowException):
    """Base of all errors of this provider."""


class InvalidSpec(SlurmError, AirflowFailException):
    """A job description that must not be submitted; names the field. Never retried."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"Job field {field!r}: {problem}")
        self.field = field


class BadConnection(SlurmError, AirflowFailException):
    """The Airflow connection can't be used as it is written (key, host key, missing host). Never retried."""


class NoConnection(BadConnection):
    """Airflow has no connection of that name. Never retried."""


class UnreadableAnswer(SlurmError):
    """A Slurm command answered, but not in a form known here. Nothing was concluded from it."""


class Unreachable(SlurmError):
    """Nobody could be asked. Says nothing about any job."""


class SshUnreachable(Unreachable):
    """No SSH connection, or it broke while a question that changes nothing was under way."""


class LoginRefused(Unreachable):
    """The login node does not take this user's key. Perhaps a directory service is down; more likely the key is wrong."""


class ControllerUnreachable(Unreachable):
    """The login node answered, slurmctld (or munge) did not."""


class AccountingUnreachable(Unreachable):
    """slurmdbd did not answer. The queue may still be readable."""


class AccountingDisabled(SlurmError):
    """This site keeps no accounting at all (``accounting_storage/none``): what left the queue can't be looked up."""


class FileUnreadable(SlurmError):
    """The login node answered, and does not read what is at a path. The connection is fine.

    :ivar refused: it does not let this user read it; else its file system is in trouble, or it is no file: another time it may say more.
    """

    def __init__(self, path: str, conn_id: str, words: str, *, refused: bool = True) -> None:
        what_to_do = " Its login has to be let in, on all folders on the way too." if refused else ""
        super().__init__(f"{path} can't be read over connection {conn_id!r}: {words}.{what_to_do}")
        self.path = path
        self.refused = refused


class OutputUnreadable(SlurmError, AirflowFailException):
    """Whether a job made its expected output can't be seen, and won't be by asking again. Never retried.

    The submission stays open: when a person has put it right and cleared the task, its job is found again and not run anew.
    """

    def __init__(self, why: FileUnreadable) -> None:
        super().__init__(f"{why} Put that right and clear the task: its job is kept, and not run again.")


class CommandRefused(SlurmError):
    """A Slurm command ended with an error that it was able to name. ``words`` holds Slurm's own text."""

    def __init__(self, what: str, words: str, code: int) -> None:
        super().__init__(f"{what} was refused (exit code {code}). Slurm said: {words or 'nothing'}")
        self.words = words
        self.code = code


class SubmitRefused(SlurmError, AirflowFailException):
    """sbatch said no and would say no again. Never retried; the request or the account has to be changed."""

    def __init__(self, words: str) -> None:
        super().__init__(
            f"Slurm refused the job for good and it was not queued. Slurm said: {words}. "
            "Change the request (partition, account, QOS, size or time limit) or ask the site for the right."
        )
        self.words = words


class ImpossibleRequest(SubmitRefused):
    """The job could never run at this site, by the site's own record; it was not sent. Never retried."""

    def __init__(self, problems: list[str], site: str) -> None:
        AirflowException.__init__(
            self,
            f"The job can't run on {site} and was not submitted. {'; '.join(problems)}. Change the request, or choose another cluster.",
        )
        self.words = "; ".join(problems)
        self.problems = tuple(problems)


class SubmitBusy(SlurmError):
    """A limit on queued jobs is reached. The same request will be taken later; wait without using up retries."""

    def __init__(self, words: str) -> None:
        super().__init__(f"The queue takes no more jobs of this user for now; it is tried again later. Slurm said: {words}")
        self.words = words


class AnswerLost(SlurmError):
    """sbatch was started and nobody knows whether the job was queued. It has to be looked up before anything is sent again."""


class SubmissionUncertain(SlurmError):
    """A submission whose answer was lost could not be looked up either. Nothing is sent until it can be."""


class JobFailed(SlurmError):
    """The job ended without success.

    :param cause: one word from :mod:`airflow_slurm.slurm.states` or from the caller, such as ``out_of_memory``.
    :param retryable: whether the same request may end better another time. If not, the operator fails without retry.
    """

    def __init__(self, message: str, *, retryable: bool = True, cause: str = "failed") -> None:
        super().__init__(message)
        self.retryable = retryable
        self.cause = cause


class JobFailedForGood(JobFailed, AirflowFailException):
    """What the operator raises for a :class:`JobFailed` that is not retryable, so that Airflow does not retry."""


class UnknownOutcome(SlurmError, AirflowFailException):
    """Past its deadline nobody can say how, or whether, the job ended. Never retried: the job might still be running.

    The submission stays open, so that nothing is submitted twice, until a person decides.
    """


class ConnectionGone(UnknownOutcome):
    """A submission lives at a connection that Airflow no longer has: nobody can be asked, so nothing is sent anywhere else. Never retried."""

    def __init__(self, job_id: str | None, key: str, n: int, conn_id: str) -> None:
        job = f"Job {job_id}" if job_id else "A job that may have been queued"
        super().__init__(
            f"{job} (key {key}, submission {n}) was submitted over connection {conn_id!r}, which Airflow no longer has. Nobody can say how it is, "
            "so nothing is submitted. Add the connection again and clear the task; or close the submission, if you know that the job is over."
        )


class Resubmit(SlurmError):
    """Raised by ``accept`` to ask for the next submission of the same key, without using up an Airflow retry.

    :param cause: in one word. :param words: what of it a person should read in the task's log.
    """

    def __init__(self, cause: str = "interrupted", words: str = "") -> None:
        super().__init__(words or f"The job ended as {cause!r} and is submitted again.")
        self.cause = cause
        self.words = words
