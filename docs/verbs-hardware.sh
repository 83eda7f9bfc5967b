#!/bin/sh
# Tries the plug-in `verbs` on an RDMA NIC and prints a report. See docs/VERBS-HARDWARE.md.
# usage: verbs-hardware.sh [DEVICE]            two processes of this host (DEVICE: verbs: by default)
#        verbs-hardware.sh INTERFACE server    on the first host; the report is the client's
#        verbs-hardware.sh INTERFACE HOST      on the second one; HOST is an address of the first
device=${1:-verbs:} peer=${2:-}
case $device in *:*) ;; *) device=verbs:$device ;; esac
export VIPL_LOG=warn
failed=0
say() { printf '\n== %s\n' "$*"; }
try() {
    say "$*"
    timeout 120 "$@" 2>&1 || { echo "FAILED with status $?"; failed=$((failed + 1)); }
}
if [ "$peer" = server ]; then
    while :; do vip_pingpong -d "$device" || exit; done
fi
say system
uname -srm
ls /usr/lib/*/libibverbs.so.1.* /usr/lib64/libibverbs.so.1.* 2>/dev/null
ulimit -l
command -v rdma >/dev/null && rdma link
command -v ibv_devinfo >/dev/null && ibv_devinfo
try vipinfo -v -d "$device"
for level in delivery reception unreliable; do
    for kind in "" --rdma -e; do
        [ "$kind" = --rdma ] && [ "$level" = unreliable ] && continue
        # shellcheck disable=SC2086 # no option, or one
        try vip_pingpong ${peer:---self} -d "$device" -c -r $level $kind -s 0,8,64,4k,64k -n 20000
    done
done
say "the kernel's last lines about it"
dmesg 2>/dev/null | grep -iE 'infiniband|rdma|mlx|irdma|bnxt_re|hns_roce' | tail -20
say "$failed failed"
[ $failed = 0 ]
