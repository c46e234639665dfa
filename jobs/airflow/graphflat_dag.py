"""Runs jobs/kubernetes/job.yaml once a day, waits for it, and returns its summary.

The Job itself retries after exit codes 1, 130 and 143. It ends at once if the job file (2) or the
input data (3) is wrong. Tasks of this DAG retry only if they cannot reach Kubernetes.
"""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import yaml
from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from kubernetes.client.rest import ApiException

try:
    from airflow.sdk import dag, get_current_context, task
    from airflow.sdk.exceptions import AirflowFailException
except ImportError:  # Airflow 2
    from airflow.decorators import dag, task
    from airflow.exceptions import AirflowFailException
    from airflow.operators.python import get_current_context

CONNECTION = "kubernetes_default"
NAMESPACE = "graphflat"
MANIFEST = Path(__file__).resolve().parents[1] / "kubernetes" / "job.yaml"


def run_date() -> str:
    """The value of `${date:...}` in the job file: the time when the run was due."""
    context = get_current_context()
    due = context.get("data_interval_end") or context["dag_run"].run_after
    return due.strftime("%Y-%m-%dT%H:%M:%SZ")


def pods(hook: KubernetesHook, name: str) -> list:
    """The pods of a Job that still exist."""
    selector = f"batch.kubernetes.io/job-name={name}"
    return hook.core_v1_client.list_namespaced_pod(NAMESPACE, label_selector=selector).items


def errors(hook: KubernetesHook, name: str) -> str:
    """The last messages of the failed processes, each message once."""
    messages = set()
    for pod in pods(hook, name):
        for container in pod.status.container_statuses or []:
            end = container.state.terminated
            if end and end.exit_code != 0:
                lines = (end.message or end.reason or "").strip().splitlines()
                messages.add(f"exit code {end.exit_code}: {lines[-1] if lines else 'no message'}")
    return "; ".join(sorted(messages))


@dag(
    schedule="@daily",
    start_date=datetime(2026, 11, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,  # only one Job of this name can exist
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
)
def graphflat():
    """Runs the Job once a day."""

    @task.sensor(poke_interval=10, timeout=600, mode="reschedule")
    def clear() -> bool:
        """Removes the Job of the previous run, and waits until it is gone."""
        name = yaml.safe_load(MANIFEST.read_text())["metadata"]["name"]
        jobs = KubernetesHook(CONNECTION).batch_v1_client
        try:
            jobs.delete_namespaced_job(name, NAMESPACE, propagation_policy="Foreground")
        except ApiException as error:
            if error.status != 404:
                raise
            return True
        return False

    @task
    def start() -> str:
        """Creates the Job for the date of this run."""
        job = yaml.safe_load(MANIFEST.read_text())
        container = job["spec"]["template"]["spec"]["containers"][0]
        next(env for env in container["env"] if env["name"] == "RUN_DATE")["value"] = run_date()
        try:
            KubernetesHook(CONNECTION).batch_v1_client.create_namespaced_job(NAMESPACE, job)
        except ApiException as error:
            if error.status != 409:  # an earlier attempt created it, but lost the answer
                raise
        return job["metadata"]["name"]

    @task.sensor(poke_interval=30, timeout=timedelta(days=1).total_seconds(), mode="reschedule")
    def wait(name: str) -> bool:
        """Waits until the Job is complete."""
        hook = KubernetesHook(CONNECTION)
        status = hook.batch_v1_client.read_namespaced_job_status(name, NAMESPACE).status
        conditions = (status and status.conditions) or []
        found = {
            condition.type: condition for condition in conditions if condition.status == "True"
        }
        if failed := found.get("Failed"):
            raise AirflowFailException(f"{failed.reason}: {errors(hook, name) or failed.message}")
        return "Complete" in found

    @task
    def report(name: str) -> dict:
        """Returns the summary: output, rows, bytes, seconds and metrics of each stage."""
        hook = KubernetesHook(CONNECTION)
        for pod in pods(hook, name):
            index = pod.metadata.labels["batch.kubernetes.io/job-completion-index"]
            if index != "0" or pod.status.phase != "Succeeded":
                continue
            # As bytes, because versions of the client decode text differently.
            log = hook.core_v1_client.read_namespaced_pod_log(
                pod.metadata.name,
                NAMESPACE,
                container="graphflat",
                tail_lines=100,
                _preload_content=False,
            )
            lines = [line for line in log.data.splitlines() if line.startswith(b"{")]
            summary = json.loads(lines[-1])
            for stage in summary["stages"]:
                print(json.dumps(stage))
            return summary
        raise AirflowFailException(f"the pod of process 0 of Job {name} is gone")

    started = start()
    clear() >> started
    wait(started) >> report(started)


graphflat()
