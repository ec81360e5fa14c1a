"""A real trimtabd, synthetic runs fed to it over the wire, and the real command line and JSON API against it."""

import json
import os
import subprocess
import urllib.parse
import urllib.request

from jobs import binary
from trimtabd import Server


class LiveServer(Server):
    """trimtabd on free loopback ports, as the page and the command line see it."""

    @property
    def grpc(self):
        return self.address

    @property
    def url(self):
        return f"http://{self.http}"

    def get(self, path: str, **parameters):
        url = f"{self.url}{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)

    def state(self, run: str):
        return self.get(f"/api/v1/runs/{urllib.parse.quote(run, safe='')}/state")

    def feed(self, run="synthetic", *flags: str, wait=True, **options):
        """Feeds a run; options as feeder flags (steps=300 → --steps 300). Waits until every step is durable."""
        command = [binary("trimtab_feeder"), "--server", self.grpc, "--run", run, *flags]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if wait:
            line = process.stdout.readline()
            assert line.startswith("fed "), process.communicate()[1]
        return process

    def trimtab(self, *arguments: str, timeout=60, **environment):
        """The command line; its server comes from the environment, as for a user."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")}
        return subprocess.run([binary("trimtab"), *arguments], capture_output=True, text=True, timeout=timeout,
                              env={**clean, "TRIMTAB_SERVER": self.grpc, **environment})
