"""Three hosts on one machine: network namespaces on a bridge, and a Dask cluster across them with TLS.

The namespaces have addresses and links of their own; the coordinator is a fourth host, on the bridge itself. They
share the machine's clock, memory and files, which real hosts do not: channels must be `socket`, since a Unix
socket would be found from any of them.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import distributed
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOSTS = 3
MAC = "02:00:00:00:00:01"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def why_not() -> str:
    """Return why network namespaces cannot be made here, or nothing."""
    if shutil.which("ip") is None:
        return "there is no `ip` command (install iproute2)"
    name = f"aner-try-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
    except (subprocess.CalledProcessError, OSError) as error:
        said = getattr(error, "stderr", b"") or b""
        return f"network namespaces are not permitted here ({said.decode().strip() or error})"
    return ""


@dataclass(slots=True)
class Hosts:
    """The namespaces, and what runs in them."""

    tag: str
    subnet: str
    """First three bytes."""
    folder: Path
    security: distributed.Security
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def address(self, host: int) -> str:
        return f"{self.subnet}.{10 + host}"

    @property
    def scheduler(self) -> str:
        return f"tls://{self.address(0)}:8786"

    def start(self, host: int, *command: str) -> subprocess.Popen[bytes]:
        """Start a Python module in a host."""
        environment = {
            **os.environ,
            "ANER_NB_PLACEMENT": "numpy:1",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "false",
        }
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace(host), sys.executable, "-m", *command],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / f"host-{host}.log").open("ab"),
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def namespace(self, host: int) -> str:
        return f"{self.tag}-{host}"

    def cut(self, host: int) -> None:
        """Take the host's cable out: packets vanish, nobody is told."""
        ip("link", "set", f"{self.tag}v{host}", "nomaster")

    def mend(self, host: int) -> None:
        ip("link", "set", f"{self.tag}v{host}", "master", f"{self.tag}b")

    @contextlib.contextmanager
    def lossy(self, *, delay: float, jitter: float, loss: float) -> Iterator[list[int]]:
        """Delay and lose frames of every host, in both directions; seconds, and a share of 1.

        Yields a list that holds, at the end, the frames that each host's cable lost.
        """
        lost: list[int] = []
        links = [(f"{self.tag}v{host}", f"{self.tag}w{host}", f"{self.tag}x{host}") for host in range(HOSTS)]
        relays: list[subprocess.Popen[bytes]] = []
        try:
            relay = [sys.executable, str(Path(__file__).with_name("lossy_link.py"))]
            subprocess.run([*relay, "--prepare", f"{self.tag}b"], check=True)
            for host, (cable, outer, inner) in enumerate(links):
                enter = ["ip", "netns", "exec", self.namespace(host)]
                subprocess.run([*enter, *relay, "--prepare", "eth0"], check=True)
                ip("link", "add", outer, "type", "veth", "peer", "name", inner)
                ip("link", "set", outer, "up", "promisc", "on")
                ip("link", "set", cable, "nomaster", "promisc", "on")
                ip("link", "set", inner, "up", "master", f"{self.tag}b")
                options = [f"--delay={delay}", f"--jitter={jitter}", f"--loss={loss}", f"--seed={host}"]
                process = subprocess.Popen(
                    [*relay, cable, outer, *options], stdout=subprocess.PIPE, start_new_session=True
                )
                relays.append(process)
                assert process.stdout is not None and process.stdout.readline() == b"forwarding\n"
            yield lost
        finally:
            end(relays)
            lost += [int(process.stdout.read()) for process in relays if process.stdout]
            for cable, outer, _ in links:
                subprocess.run(["ip", "link", "del", outer], check=False, capture_output=True)
                ip("link", "set", cable, "master", f"{self.tag}b", "promisc", "off")


@contextlib.contextmanager
def hosts(folder: Path) -> Iterator[Hosts]:
    """Make three hosts with a scheduler on the first and a worker on each; end and remove all of them."""
    tag = f"an{os.getpid() % 10**5}"
    # RFC 2544 keeps these for tests of networks: no real host is hidden behind them.
    subnet = f"198.{random.choice((18, 19))}.{random.randrange(1, 255)}"
    found = Hosts(tag, subnet, folder, certificates(folder))
    try:
        # Without one of its own, a bridge takes the lowest address of its ports: it would change with each cable
        # that is taken out, and hosts would go on sending to the old one until their ARP entries ran out.
        ip("link", "add", f"{tag}b", "address", MAC, "type", "bridge")
        ip("addr", "add", f"{subnet}.1/24", "dev", f"{tag}b")
        ip("link", "set", f"{tag}b", "up")
        for host in range(HOSTS):
            name = found.namespace(host)
            ip("netns", "add", name)
            ip("link", "add", f"{tag}v{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", name, "addr", "add", f"{found.address(host)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("link", "set", f"{tag}v{host}", "master", f"{tag}b", "up")
        tls = [f"--tls-{name}={folder / name}.pem" for name in ("ca-file", "cert", "key")]
        found.start(
            0,
            "distributed.cli.dask_scheduler",
            *("--protocol", "tls", "--host", found.address(0), "--port", "8786", "--no-dashboard", *tls),
        )
        for host in range(HOSTS):
            found.start(
                host,
                "distributed.cli.dask_worker",
                found.scheduler,
                *(
                    "--host",
                    found.address(host),
                    "--protocol",
                    "tls",
                    "--name",
                    f"host-{host}",
                    "--no-dashboard",
                ),
                *(
                    "--nthreads",
                    "1",
                    "--nworkers",
                    "1",
                    "--memory-limit",
                    "0",
                    "--local-directory",
                    str(folder),
                    *tls,
                ),
            )
        yield found
    finally:
        end(found.processes)
        for host in range(HOSTS):
            subprocess.run(["ip", "netns", "del", found.namespace(host)], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", f"{tag}b"], check=False, capture_output=True)


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End processes that were started with a session of their own, and what they started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        deadline = time.monotonic() + 5
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))


def certificates(folder: Path) -> distributed.Security:
    """Make a certificate authority and one certificate for all hosts; return what a Dask client needs."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aner_nb tests")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for file, content in (("ca-file", pem), ("cert", pem), ("key", secret)):
        path = folder / f"{file}.pem"
        path.touch(0o600)
        path.write_bytes(content)
    own = {"cert": str(folder / "cert.pem"), "key": str(folder / "key.pem")}
    return distributed.Security(
        require_encryption=True,
        tls_ca_file=str(folder / "ca-file.pem"),
        tls_client_cert=own["cert"],
        tls_client_key=own["key"],
    )
