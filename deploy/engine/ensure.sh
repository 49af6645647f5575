#!/bin/sh
# Makes sure that a container engine answers: the one that is there, else one that this script
# installs (Debian, Ubuntu) and starts. Safe to repeat; quick where the engine answers.
#
# An engine that was started here is left running: the next build and the next daemon use it.
# To end it: kill "$(cat /var/run/docker.pid)".
#
# Exit codes
#   0  an engine answers
#   1  it should have been possible, and it failed; or CI=true and no engine can be had
#   3  no engine can be had here: not root, no package manager that we know, a foreign DOCKER_HOST
set -u

start_timeout_s=60
answer_timeout_s=10
engine_log=${ENGINE_LOG:-/var/log/sandboxd-dockerd.log}
pid_file=/var/run/docker.pid
containerd_pid_file=/var/run/docker/containerd/containerd.pid

say() { echo "engine: $*"; }

cannot() {
    say "$*" >&2
    if [ "${CI:-}" = true ]; then exit 1; fi
    exit 3
}

answers() {
    command -v docker > /dev/null 2>&1 &&
        timeout "$answer_timeout_s" docker version --format '{{.Server.Version}}' > /dev/null 2>&1
}

succeed() {
    if [ "${1:-}" ] || [ -t 1 ]; then
        say "$(docker version --format 'Docker {{.Server.Version}} answers')"
    fi
    exit 0
}

install_engine() {
    command -v apt-get > /dev/null 2>&1 ||
        cannot "no engine here, and no apt-get to install one: install Docker 20.10 or newer"
    say "installing docker.io (apt)"
    export DEBIAN_FRONTEND=noninteractive
    install_log=$(mktemp)
    if ! { apt-get update -q && apt-get install -y -q --no-install-recommends docker.io; } \
        > "$install_log" 2>&1 < /dev/null 9>&-; then
        tail -n 15 "$install_log" >&2
        rm -f "$install_log"
        cannot "docker.io could not be installed"
    fi
    rm -f "$install_log"
}

# Without an init system nobody may have mounted the control groups, and no container starts.
mount_cgroups() {
    if grep -q -E ' /sys/fs/cgroup(/[^ ]*)? cgroup' /proc/mounts; then return; fi
    say "mounting control groups"
    if grep -q cgroup2 /proc/filesystems && mount -t cgroup2 cgroup2 /sys/fs/cgroup 2> /dev/null
    then
        # A controller bound to the old hierarchy is missing in the new one.
        if grep -q memory /sys/fs/cgroup/cgroup.controllers; then return; fi
        umount /sys/fs/cgroup
    fi
    mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
    for controller in $(awk '!/^#/ && $4 == 1 { print $1 }' /proc/cgroups); do
        mkdir -p "/sys/fs/cgroup/$controller"
        mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller" ||
            rmdir "/sys/fs/cgroup/$controller"
    done
}

process_of() { # PID-FILE NAME: the pid, where a process of that name lives under it
    [ -r "$1" ] || return 1
    pid=$(cat "$1")
    grep -q "^Name:[[:space:]]$2\$" "/proc/$pid/status" 2> /dev/null || return 1
    if grep -q '^State:[[:space:]]Z' "/proc/$pid/status"; then return 1; fi
    echo "$pid"
}

# The engine takes a pid file for a living engine whenever some process has that number.
drop_stale_pid_files() {
    process_of "$pid_file" dockerd > /dev/null || rm -f "$pid_file"
    process_of "$containerd_pid_file" containerd > /dev/null || rm -f "$containerd_pid_file"
}

# Waits until the engine answers; gives up early where process $1 has ended.
wait_for_answer() {
    deadline=$(($(date +%s) + start_timeout_s))
    while [ "$(date +%s)" -lt "$deadline" ]; do
        if answers; then return 0; fi
        if [ "${1:-}" ] && ! kill -0 "$1" 2> /dev/null; then return 1; fi
        sleep 0.3
    done
    return 1
}

start_detached() { # DOCKERD-OPTIONS...
    say "starting dockerd${*:+ $*}"
    drop_stale_pid_files
    # Its own session and no descriptor of ours, so that the end of a terminal or of a CI step
    # ends neither it nor the wait for its output.
    setsid dockerd "$@" >> "$engine_log" 2>&1 < /dev/null 9>&- &
    wait_for_answer $!
}

start_engine() {
    mount_cgroups
    if [ -d /run/systemd/system ]; then
        say "starting docker (systemd)"
        systemctl start docker > /dev/null 2>&1 9>&-
        wait_for_answer && return 0
        systemctl status docker --no-pager --lines 15 >&2
        return 1
    fi
    if running=$(process_of "$pid_file" dockerd); then
        say "waiting for dockerd, process $running"
        wait_for_answer "$running"
        return
    fi
    : >> "$engine_log" || engine_log=/dev/null
    start_detached && return 0
    # Sandboxes use no bridge: where the host's packet filter is not usable, do without.
    start_detached --iptables=false --ip6tables=false --bridge=none
}

if answers; then succeed; fi
if [ "${DOCKER_HOST:-}" ]; then
    cannot "DOCKER_HOST is \`$DOCKER_HOST\`, and no engine answers there"
fi
if [ "$(id -u)" -ne 0 ]; then
    if [ -S /var/run/docker.sock ] && ! [ -w /var/run/docker.sock ]; then
        cannot "the engine does not admit this user: join the group of /var/run/docker.sock"
    fi
    cannot "no engine answers, and only root can install and start one"
fi
# Two runs at once would start two engines over one state folder. What is started from here
# closes the descriptor, else a living engine would hold the lock.
exec 9> /var/lock/sandboxd-engine.lock
flock -n 9 || {
    say "another run is at work on the engine; waiting for it"
    flock 9
}
if answers; then succeed; fi
if ! command -v dockerd > /dev/null 2>&1 || ! command -v docker > /dev/null 2>&1; then
    install_engine
    # Only the client was missing, or the package has started its engine.
    if answers; then succeed installed; fi
fi
if start_engine; then succeed started; fi
tail -n 15 "$engine_log" >&2
say "dockerd did not come up; its log is $engine_log" >&2
exit 1
