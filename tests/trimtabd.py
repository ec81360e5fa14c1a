"""A real trimtabd on loopback and the command line against it, for end-to-end and fault tests."""

import csv
import json
import signal
import socket
import subprocess
import sys
import time

from jobs import binary, job_environment

READY_SECONDS = 60
JOIN_SECONDS = 300


def wait_for(condition, seconds, explain=lambda: ""):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.1)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """trimtabd with its store in `folder`, and the command line against it. It can be killed and started again there."""

    def __init__(self, folder, *flags, listen="127.0.0.1:0", http="127.0.0.1:0"):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.log, self.flags = folder, folder / "trimtabd.log", flags
        self.start(listen, http)

    def start(self, listen=None, http="127.0.0.1:0"):
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [
                binary("trimtabd"),
                "--listen",
                listen or self.address,
                "--http",
                http,
                "--data-dir",
                self.folder / "store",
                "--ready-file",
                ready,
                *self.flags,
            ],
            stdout=open(self.log, "ab"),
            stderr=subprocess.STDOUT,
            env=job_environment(),
        )
        wait_for(
            lambda: self.process.poll() is not None or (ready.exists() and ready.stat().st_size),
            READY_SECONDS,
            self.log.read_text,
        )
        assert self.process.poll() is None, self.log.read_text()
        answer = json.loads(ready.read_text())
        self.address, self.http = answer["grpc"], answer["http"]

    def kill(self):
        self.process.kill()
        self.process.wait(60)

    def stop(self):
        """Ends it, unless it has ended; its exit status must be 0."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log.read_text()

    def cli(self, *words, check=True):
        """Standard output of the command, as JSON documents when --json is among the words."""
        result = subprocess.run(
            [str(binary("trimtab")), *words, "--server", self.address],
            capture_output=True,
            text=True,
            timeout=120,
            env=job_environment(),
        )
        assert not check or result.returncode == 0, result.stderr
        if not check:
            return result
        return [json.loads(line) for line in result.stdout.splitlines()] if "--json" in words else result.stdout

    def series(self, run, metric, *options):
        """{step: list of values} of a metric."""
        rows = csv.DictReader(self.cli("series", run, "--metric", metric, "--csv", *options).splitlines())
        values = {}
        for row in rows:
            values.setdefault(int(row["step"]), []).append(float(row["value"]))
        return values

    def steps(self, run):
        runs = [entry for line in self.cli("runs", "--json") for entry in line.get("runs", []) if entry["run"] == run]
        return int(runs[0].get("lastStep", runs[0].get("last_step", 0))) if runs else 0

    def finished_plan(self, run, index):
        """The run's plan of that place in time, once it is neither being prepared nor committed."""
        underway = {"PLAN_STATE_PREPARING", "PLAN_STATE_COMMITTING"}
        plans = []

        def finished():
            (answer,) = self.cli("plans", run, "--json")
            plans[:] = sorted(answer.get("plans", []), key=lambda plan: int(plan["id"]))
            return len(plans) > index and plans[index]["state"] not in underway

        wait_for(finished, JOIN_SECONDS, lambda: plans)
        return plans[index]


class Jobs:
    """Starts `trimtab run` towards a server; what a job prints is in `<run>.txt` of the folder."""

    def __init__(self, server, folder):
        self.server, self.folder, self.started = server, folder, []

    def __call__(self, name, command, *options, **environment):
        """Popen of `trimtab run --run name options -- command`."""
        job = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "trimtab",
                "run",
                "--server",
                self.server.address,
                "--run",
                name,
                *options,
                "--",
                *map(str, command),
            ],
            stdout=open(self.folder / f"{name}.txt", "w"),
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env=job_environment(TRIMTAB_COURIER=binary("trimtab-courier"), **environment),
        )
        self.started.append(job)
        return job

    def output(self, name):
        return (self.folder / f"{name}.txt").read_text()

    def stop(self):
        for job in self.started:
            if job.poll() is None:
                job.terminate()
                job.wait(60)
