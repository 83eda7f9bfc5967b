#!/bin/busybox sh
# The first process of the guest: loads modules, makes the machine's files its own, sets up rxe0, runs the command.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
exec >/dev/console 2>&1 </dev/null
for module in $($b cat /modules/order); do
    $b insmod /modules/$module 2>/dev/null || [ -d /sys/module/$module ] || echo "guest: cannot load $module"
done
# This machine's files, and a layer in memory for what is written.
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,ro,cache=loose host /host || echo "guest: no 9p"
$b mount -t tmpfs tmpfs /layer
$b mkdir /layer/upper /layer/work
$b mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work overlay /root || echo "guest: no overlay"
if [ -f /changes ]; then
    $b mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none writable "/root$($b cat /changes)" || echo "guest: no writable folder"
fi
for one in proc sys dev; do $b mount --move /$one /root/$one; done
$b mkdir -p /root/dev/shm /root/dev/pts
# Folders of the command stay, also where the guest has files of its own.
number=0
while read -r folder; do
    number=$((number + 1))
    case $folder in
        /tmp/* | /run/* | /dev/shm/*) $b mkdir /kept/$number && $b mount -o rbind "/root$folder" /kept/$number ;;
    esac
done </folders
for one in tmp run dev/shm; do $b mount -t tmpfs tmpfs /root/$one; done
number=0
while read -r folder; do
    number=$((number + 1))
    [ ! -d /kept/$number ] || { $b mkdir -p "/root$folder" && $b mount --move /kept/$number "/root$folder"; }
done </folders
$b mount -t devpts devpts /root/dev/pts
$b cp /command /root/run/command
$b cat >/root/run/setup <<'END'
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
ip link set lo up
interface=dummy0 number=1
case $side in
    [01]) # One of two guests: see two.rs.
        interface=eth0 number=$((side + 1))
        ip link set eth1 up
        ip addr add 10.8.0.$number/24 dev eth1
        ip addr add fd09::$number/64 dev eth0 nodad ;;
    *) [ -d /sys/class/net/dummy0 ] || ip link add dummy0 type dummy ;;
esac
ip link set $interface mtu 4200 up
ip addr add 10.9.0.$number/24 dev $interface
rdma link add rxe0 type rxe netdev $interface
[ -c /dev/infiniband/uverbs0 ] || mknod -m 666 /dev/infiniband/uverbs0 c $(tr : ' ' </sys/class/infiniband_verbs/uverbs0/dev)
chmod 755 /dev/infiniband
chmod 666 /dev/infiniband/*
echo "guest: up after $(cut -d' ' -f1 /proc/uptime) s"
END
$b chroot /root /bin/sh /run/setup
$b chroot /root /bin/sh /run/command
status=$?
# What the kernel says if something went wrong, but not what an RDMA device says of each error that a test makes.
[ $status = 0 ] || $b dmesg | $b grep -v ' rxe0: ' | $b tail -n 20
echo "GUEST-STATUS $status"
$b poweroff -f
