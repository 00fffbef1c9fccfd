"""Ranks report metrics over sockets to a service in rank 1, which reads a report to its end."""

import json
import socket
import socketserver
import sys
import threading

import torch
import torch.distributed as dist

faulty = sys.argv[1:] == ["faulty"]
COLLECTOR, STEPS, CHUNK = 1, 12, 2048


class Collector(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.values: list[float] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(socketserver.StreamRequestHandler):
    server: Collector

    def handle(self) -> None:
        report = json.loads(self.rfile.read())
        self.server.values += report["values"]
        self.wfile.write(b"ok")


class Reporter:
    def __init__(self, port: int) -> None:
        self.port = port

    def report(self, values: list[float]) -> None:
        content = json.dumps({"values": values}).encode()
        with socket.create_connection(("127.0.0.1", self.port)) as service:
            if len(content) > CHUNK:
                self.send_in_chunks(service, content)
            else:
                service.sendall(content)
                service.shutdown(socket.SHUT_WR)
            if service.recv(2) != b"ok":
                raise ConnectionError("the collector has not taken a report")

    def send_in_chunks(self, service: socket.socket, content: bytes) -> None:
        for begin in range(0, len(content), CHUNK):
            service.sendall(content[begin : begin + CHUNK])


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    collector = Collector() if rank == COLLECTOR else None
    port = [collector.server_address[1] if collector else 0]
    dist.broadcast_object_list(port, src=COLLECTOR)
    reporter = Reporter(port[0])
    for step in range(STEPS):
        gradient = torch.randn(400)
        dist.all_reduce(gradient)
        many = faulty and rank == 4 and step == 8
        reporter.report(gradient[: 400 if many else 5].tolist())
        dist.broadcast(gradient, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
