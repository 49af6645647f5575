"""What is in each of the images of `build.py`.

A recipe is made when it is asked for: the trees need a program of the toolbox's image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.images.build import (
    BASE,
    Entry,
    Layered,
    Recipe,
    Tree,
    build,
    busybox_program,
    file,
    folder,
    link,
)


def image(name: str) -> str:
    """The tag of a named image, built where it is not there yet."""
    return build(name, RECIPES[name]())


APPLETS: Final = "cat chmod echo env find grep head id ls mkdir mount ps sed seq sh sleep stat wc"

_MUSL: Final = f"""
FROM {BASE} AS build
RUN if [ -f /etc/apt/sources.list ]; then \
        sed 's/^deb /deb-src /' /etc/apt/sources.list > /etc/apt/sources.list.d/sources.list; \
    else sed -i 's/^Types: deb$/Types: deb deb-src/' /etc/apt/sources.list.d/*.sources; fi \
    && apt-get update -q \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends musl-tools
WORKDIR /src
# As upstream publishes it: Debian's patches would ask for the tools that made `configure`.
RUN apt-get source -q --download-only dash && tar --strip-components=1 -xf dash_*.orig.tar.* \
    && CC=musl-gcc ./configure --host="$(uname -m)-linux-musl" --without-libedit > /dev/null \
    && make -s -C src && strip src/dash
# What the shell names as its loader, and the library under that name.
RUN mkdir -p /out/lib /out/bin && cp src/dash /out/bin/sh && cp -L /lib/ld-musl-*.so.1 /out/lib/
FROM {{busybox}}
RUN ["/bin/busybox", "rm", "/bin/sh"]
COPY --from=build /out /
"""

_ONE_PROGRAM: Final = f"""
FROM {BASE} AS build
RUN echo 'int main(void) {{ return 0; }}' > one.c && gcc -static -o /server one.c
FROM scratch
COPY --from=build /server /server
ENTRYPOINT ["/server"]
"""


def _bare(without: tuple[str, ...] = ()) -> tuple[Entry, ...]:
    """A static busybox and its names, not even an /etc."""
    names = [name for name in APPLETS.split() if name not in without]
    return (
        file("/bin/busybox", busybox_program(), 0o755),
        *[link(f"/bin/{name}", "busybox") for name in names],
    )


def _odd(*entries: Entry, changes: tuple[str, ...] = (), without: str = "") -> Callable[[], Tree]:
    return lambda: Tree((*_bare((without,)), *entries), changes)


def _configured(*changes: str) -> Callable[[], Tree]:
    return _odd(changes=changes)


def _musl() -> Layered:
    return Layered(_MUSL.format(busybox=image("busybox")))


def _everything_configured() -> Layered:
    lines = (
        f"FROM {image('busybox')}",
        'ENTRYPOINT ["/bin/false"]',
        'CMD ["/bin/false"]',
        "HEALTHCHECK --interval=1s CMD touch /tmp/healthy",
        "STOPSIGNAL SIGUSR1",
        "ONBUILD RUN false",
        'WORKDIR "/some/where else"',
        "ENV HOME=/nonexistent PWD=/x SHELL=/x USER=x OLDPWD=/x",
        "LABEL sandboxd.worker=x sandboxd.resource=x sandboxd.generation=x",
        "EXPOSE 22",
    )
    return Layered("\n".join(lines) + "\n")


_FOREIGN: Final = b"\x7fELF\x02\x01\x01" + bytes(57)
"""A program for no machine that there is."""

_ACCOUNTS: Final = (
    file(
        "/etc/passwd",
        "root:x:0:0::/root:/bin/sh\n#app:x:5:5\napp:x:1234:2345::/srv:/bin/sh\nadmin:x:0:0::/:/x\n",
    ),
    file("/etc/group", "root:x:0:\nstaff:x:3456:app\n"),
)

RECIPES: Final[dict[str, Callable[[], Recipe]]] = {
    "busybox": _odd(),
    "musl": _musl,
    "shellless": lambda: Layered(_ONE_PROGRAM),
    # --- something lies where the daemon mounts -------------------------------
    "odd-workspace-file": _odd(file("/workspace", "x")),
    "odd-workspace-link": _odd(folder("/etc"), link("/workspace", "/etc")),
    "odd-home-file": _odd(file("/home/sandbox", "x")),
    "odd-home-link": _odd(folder("/etc"), folder("/home"), link("/home/sandbox", "/etc")),
    "odd-home-moved": _odd(folder("/var/home"), link("/home", "var/home")),
    "odd-home-hidden": _odd(folder("/var/tmp"), link("/home", "var/tmp")),
    "odd-mount-file": _odd(file("/.sandboxd", "x")),
    "odd-mount-link": _odd(link("/.sandboxd", "/workspace")),
    "odd-toolbox-file": _odd(folder("/.sandboxd"), file("/.sandboxd/toolbox", "x")),
    "odd-toolbox-link": _odd(folder("/.sandboxd"), link("/.sandboxd/toolbox", "/bin")),
    "odd-toolbox-full": _odd(file("/.sandboxd/toolbox/bin/busybox", "x", 0o755)),
    "odd-tmp-link": _odd(folder("/var/tmp"), link("/tmp", "/var/tmp")),
    "odd-tmp-read-only": _odd(folder("/tmp", 0o555), folder("/var/tmp", 0o500)),
    "odd-tmp-file": _odd(file("/tmp", "x")),
    "odd-etc-link": _odd(folder("/usr/etc"), link("/etc", "usr/etc")),
    "odd-passwd-folder": _odd(folder("/etc/passwd")),
    "odd-proc-file": _odd(file("/proc", "x")),
    # --- shells ---------------------------------------------------------------
    "odd-sh-folder": _odd(folder("/bin/sh"), without="sh"),
    "odd-sh-dangling": _odd(link("/bin/sh", "/nowhere"), without="sh"),
    "odd-sh-forbidden": _odd(file("/bin/sh", "#!/bin/busybox sh\n"), without="sh"),
    "odd-sh-script": _odd(
        file("/bin/sh", '#!/bin/busybox sh\nexec /bin/busybox sh "$@"\n', 0o755), without="sh"
    ),
    "odd-sh-circle": _odd(file("/bin/sh", "#!/bin/sh\n", 0o755), without="sh"),
    "odd-sh-foreign": _odd(file("/bin/sh", _FOREIGN, 0o755), without="sh"),
    "odd-sh-on-path": _odd(
        link("/busybox/sh", "/bin/busybox"),
        changes=("ENV PATH=.:/usr/bin:/busybox:/bin",),
        without="sh",
    ),
    "odd-bash-crashes": _odd(file("/bin/bash", "#!/bin/busybox sh\nkill -SEGV $$\n", 0o755)),
    "odd-bash-silent": _odd(file("/bin/bash", "#!/bin/busybox true\n", 0o755)),
    "odd-bash-hangs": _odd(file("/bin/bash", "#!/bin/busybox sh\nsleep 1000\n", 0o755)),
    "odd-bash-no-loader": _odd(
        file("/bin/bash", "#!/lib64/ld-linux-x86-64.so.2\n", 0o755),
    ),
    "odd-bash-foreign": _odd(file("/bin/bash", _FOREIGN, 0o755)),
    # --- configuration --------------------------------------------------------
    "odd-configured": _everything_configured,
    "odd-environment": lambda: Layered(
        f"FROM {BASE}\n"
        "RUN echo 'echo INJECTED' > /inject.sh\n"
        "ENV LD_PRELOAD=/nowhere.so PYTHONHOME=/nowhere PYTHONPATH=/nowhere LC_ALL=xx "
        'BASH_ENV=/inject.sh ENV=/inject.sh HOME="/with a space" PATH_INFO=1\n'
    ),
    "odd-path-empty": _configured("ENV PATH="),
    "odd-path-hostile": _odd(
        file("/evil/sh", "#!/bin/busybox sh\necho EVIL\n", 0o755),
        file("/evil/rg", "#!/bin/busybox sh\necho EVIL\n", 0o755),
        changes=("ENV PATH=/evil:.::/nonexistent",),
    ),
    "odd-volumes": _configured('VOLUME ["/workspace", "/tmp", "/home/sandbox", "/data", "/home"]'),
    "odd-volume-inside": _configured("VOLUME /workspace/data"),
    # --- users ----------------------------------------------------------------
    "odd-user-name": _odd(*_ACCOUNTS, changes=("USER app",)),
    "odd-user-group": _odd(*_ACCOUNTS, changes=("USER app:staff",)),
    "odd-user-unknown": _odd(*_ACCOUNTS, changes=("USER nobody-here",)),
    "odd-user-root-by-name": _odd(*_ACCOUNTS, changes=("USER admin",)),
    "odd-user-no-accounts": _configured("USER app"),
    "odd-user-linked": _odd(
        link("/etc/passwd", "/usr/lib/passwd"),
        file("/usr/lib/passwd", "app:x:1234:2345::/srv:/bin/sh\n"),
        changes=("USER app",),
    ),
    "odd-user-number": _configured("USER 4321"),
    "odd-user-huge": _configured("USER 2147483647:2147483646"),
    "odd-user-too-huge": _configured("USER 4294967294"),
}
