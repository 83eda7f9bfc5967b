#!/bin/sh
# Tries the plug-in `verbs` on an RDMA NIC and prints a report to send. See docs/VERBS-HARDWARE.md.
#
#   verbs-hardware.sh [DEVICE]              two processes of this host; DEVICE is verbs: unless it is given
#   verbs-hardware.sh INTERFACE server      on the first of two hosts, until it is interrupted
#   verbs-hardware.sh INTERFACE HOST        on the second one; HOST is an address of the first. The report is this one's
#   verbs-hardware.sh INTERFACE HOST down   the same, and sets INTERFACE of this host down for 1 s and for 20 s, as root
#
# Without the word `down` it changes nothing. ITERATIONS is the number of round trips of each size.
set -u
device=${1:-verbs:} peer=${2:-} down=${3:-}
interface=${device#verbs:}
device=verbs:$interface
count=${ITERATIONS:-20000} sizes=8,64,4k,64k
trips="-n $count -w $((count / 20))"
doomed=5002 # The port of a server that is killed.
export VIPL_LOG="${VIPL_LOG:-warn}"
work=$(mktemp -d) || exit
failed=0 doomed_group='' helpers=''

finish() {
    for group in $doomed_group; do kill -9 "-$group" 2>/dev/null; done
    # shellcheck disable=SC2086 # several numbers, or none
    [ -z "$helpers" ] || kill $helpers 2>/dev/null
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM HUP

say() { printf '\n== %s\n' "$*"; }
wrong() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}
try() {
    say "$*"
    timeout 600 "$@" 2>&1 || wrong "status $?"
}
have() { command -v "$1" >/dev/null; }
now() { cut -d' ' -f1 /proc/uptime; }
since() { echo "$1 $(now)" | awk '{ printf "%.1f s", $2 - $1 }'; }

# A server whose process is killed five seconds after a client has connected. Its group goes into doomed_group.
start_doomed() {
    : >"$work/doomed"
    setsid vip_pingpong -d "$device" -p $doomed >"$work/doomed" 2>&1 &
    doomed_group=$!
}
kill_doomed() {
    until grep -q '^connected' "$work/doomed"; do
        kill -0 "$doomed_group" 2>/dev/null || return
        sleep 0.2
    done
    sleep 5
    kill -9 "-$doomed_group"
}

# A ping-pong until the connection ends. It has to end with CONN_LOST.
until_lost() {
    begin=$(now)
    timeout 120 vip_pingpong "$1" -d "$device" -p "$2" -e -n 1000000000 -s 4k >"$work/client" 2>&1
    tail -n 2 "$work/client"
    grep -q VIP_ERROR_CONN_LOST "$work/client" || wrong "no VIP_ERROR_CONN_LOST"
    echo "ended after $(since "$begin")"
}

if [ "$peer" = server ]; then
    (while start_doomed; do kill_doomed; wait "$doomed_group"; sleep 1; done) 2>/dev/null &
    helpers=$!
    if have ib_send_lat; then
        (while :; do ib_send_lat >/dev/null 2>&1; sleep 1; done) &
        helpers="$helpers $!"
    fi
    # A client that has ended early is no reason to end.
    while :; do vip_pingpong -d "$device" || sleep 1; done
fi

say "system"
date -u
uname -srm
[ -r /etc/os-release ] && sed -n 's/^PRETTY_NAME=//p' /etc/os-release
ls /usr/lib/*/libibverbs.so.1.* /usr/lib64/libibverbs.so.1.* 2>/dev/null
echo "memory that may be pinned: $(ulimit -l) KiB"
have rdma && rdma link
have ibv_devinfo && ibv_devinfo -v | grep -vE '^[[:space:]]*(GID\[.*(0000:){3}|$)'
try vipinfo --version
try vipinfo -v -d "$device"
# Which names lead where. A name that nothing serves is no failure.
say "vipinfo -m"
# shellcheck disable=SC2046 # several names
vipinfo -m VINIC "$device" $(ls /sys/class/net | sed 's/^/via_/')
say "vipinfo --why $device"
# shellcheck disable=SC2086 # no host, or one
vipinfo --why "$device" $peer

for level in delivery reception unreliable; do
    for kind in "" -e --rdma; do
        [ "$kind" = --rdma ] && [ "$level" = unreliable ] && continue
        # shellcheck disable=SC2086 # several options
        try vip_pingpong ${peer:---self} -d "$device" -c -r $level $kind -s $sizes $trips
    done
done
# shellcheck disable=SC2086 # several options
try vip_pingpong ${peer:---self} -d "$device" -s 8 $trips

if have ib_send_lat; then
    say "ib_send_lat, for comparison"
    if [ -z "$peer" ]; then
        ib_send_lat >/dev/null 2>&1 &
        helpers=$!
        sleep 1
    fi
    timeout 60 ib_send_lat -s 8 -n "$count" "${peer:-localhost}" 2>&1 | tail -n 4
fi

say "a name that there is not"
if vip_pingpong --self -d verbs:none -n 1 2>&1; then wrong "it was opened"; fi

say "4 MiB may be pinned: an ordinary user is refused, in words, where the kernel counts what a device pins; root is not"
(ulimit -l 4096 && timeout 60 vip_pingpong --self -d "$device" -n 1 -s 8) 2>&1 | tail -n 3

say "a peer that is killed after 5 s"
if [ -z "$peer" ]; then
    start_doomed
    kill_doomed 2>/dev/null &
    until_lost localhost $doomed
else
    until_lost "$peer" $doomed
fi

if [ "$down" = down ] && [ -n "$peer" ]; then
    say "$interface down for 1 s: the connection lasts on hardware; rxe ends it"
    (sleep 5; ip link set "$interface" down; sleep 1; ip link set "$interface" up) &
    timeout 20 vip_pingpong "$peer" -d "$device" -e -n 1000000000 -s 4k >"$work/client" 2>&1
    [ $? = 124 ] && echo "it lasts" || tail -n 1 "$work/client"
    sleep 5
    say "$interface down for 20 s: VIP_ERROR_CONN_LOST within 10 s"
    (sleep 5; ip link set "$interface" down; sleep 20; ip link set "$interface" up) &
    until_lost "$peer" 5001
    wait
fi

say "the kernel's last lines about it"
dmesg 2>/dev/null | grep -iE 'infiniband|rdma|rxe|mlx|irdma|bnxt_re|hns_roce' | tail -n 20
say "$failed failed"
[ $failed = 0 ]
