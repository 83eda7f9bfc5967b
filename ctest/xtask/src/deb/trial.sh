# Runs as root in a fresh Debian; /trial has the packages in two versions. Each line that begins with "trial:" names what
# has been shown. The first command that fails ends it.

fail() {
    echo "trial: FAILED: $*"
    exit 1
}

tester() {
    su - tester -c "$1"
}

# Names of all files, and what a package may leave in files of others.
everything() {
    find / -xdev \( -path /proc -o -path /trial -o -path /tmp -o -path /run -o -path /dev -o -path /home \
        -o -path /var/lib/dpkg -o -path /var/log -o -path /var/cache \) -prune -o -print | sort
    cat /etc/group /etc/gshadow /etc/passwd
}

names() {
    for package in "$@"; do dpkg-deb --field "$package" Package; done
}

greets() {
    for device in /dev/via_lo clan: sim:loss=0.05 ip:; do
        said=$(tester "./hello $device") || fail "hello $device: $said"
        [ "$said" = "27 bytes: hello from another process" ] || fail "hello $device said $said"
    done
}

useradd --create-home --shell /bin/sh tester
everything >/tmp/before

dpkg --install /trial/first/*.deb >/tmp/dpkg.log || { cat /tmp/dpkg.log; fail "dpkg --install"; }
dpkg --audit | grep . && fail "dpkg is not content"
[ -n "$(getent group vipl)" ] || fail "no group vipl"
echo "trial: installed $(names /trial/first/*.deb | wc -l) packages"

# The program of README, and an agent of the user's own.
tester 'cc /usr/share/doc/vipl-doc/examples/hello.c -o hello $(pkg-config --cflags --libs vipl)'
greets
tester vipinfo >/tmp/vipinfo
for plugin in loopback clan; do
    grep -q "$plugin" /tmp/vipinfo || { cat /tmp/vipinfo; fail "vipinfo does not name $plugin"; }
done
echo "trial: README's program, compiled and run by a user, over loopback, clan, sim and ip"

tester 'cc /usr/share/doc/vipl-doc/examples/hello.c -o hello-archive $(pkg-config --cflags --libs vipl-static)'
tester 'ldd ./hello-archive' | grep libvipl && fail "the archive's program needs the shared library"
tester './hello-archive' | grep -q '^27 bytes' || fail "the archive's program"
echo "trial: the same with the archive"

said=$(tester "python3 -c 'import vipl; print(len(vipl.open().alloc(64)))'") || fail "python3: $said"
[ "$said" = 64 ] || fail "python3 said $said"
python3 -c 'import vipl; vipl.strerror(0)' || fail "python3 as root"
echo "trial: the Python package"

if [ -d /trial/beside ]; then
    dpkg --install /trial/beside/*.deb >/tmp/dpkg.log || { cat /tmp/dpkg.log; fail "dpkg --install of i386"; }
    tester 'cc -m32 /usr/share/doc/vipl-doc/examples/hello.c -o hello32 -lvipl'
    tester 'ldd ./hello32' | grep -q '/i386-linux-gnu/libvipl.so.1' || fail "the 32-bit program has no library"
    for device in /dev/via_lo clan: ip:; do
        said=$(tester "./hello32 $device") || fail "hello32 $device: $said"
        [ "$said" = "27 bytes: hello from another process" ] || fail "hello32 $device said $said"
    done
    dpkg --purge libvipl1:i386 libvipl-dev:i386 vipl-plugins:i386 >/tmp/dpkg.log || { cat /tmp/dpkg.log; fail "dpkg --purge of i386"; }
    echo "trial: a 32-bit program with the 64-bit agent and device, both libraries installed"
fi

# The user's own agent has the UDP port, without which the system's agent serves no network; it leaves some seconds after
# its last program.
agents() {
    for exe in /proc/[0-9]*/exe; do
        if [ "$(readlink "$exe" 2>/dev/null)" = /usr/libexec/vipl/vipkad ]; then echo "$exe"; fi
    done
}
tries=0
while [ -n "$(agents)" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || fail "the user's agent stays"
    sleep 0.2
done

# The agent for all users, with the rights that its unit gives it.
setpriv --bounding-set="$(cat /trial/capabilities)" --no-new-privs /usr/libexec/vipl/vipkad --system &
agent=$!
until [ -S /run/vipl/kagent.sock ]; do kill -0 "$agent" || fail "vipkad --system"; done
greets
tester 'vipinfo -d gnic2:eth0' >/tmp/refused 2>&1 && fail "a user without the group may use raw Ethernet"
usermod --append --groups vipl tester
tester 'vipinfo -d gnic2:eth0' >/tmp/allowed 2>&1 || { cat /tmp/allowed; fail "a member of the group may not use raw Ethernet"; }
gpasswd --delete tester vipl >/dev/null
[ "$(readlink "/proc/$agent/exe")" = /usr/libexec/vipl/vipkad ] || fail "the agent has ended"
kill "$agent"
wait "$agent" || fail "the agent's exit status is $?"
echo "trial: the system's agent with only $(cat /trial/capabilities), raw Ethernet for members of the group"

dpkg --install /trial/next/*.deb >/tmp/dpkg.log || { cat /tmp/dpkg.log; fail "the upgrade"; }
[ "$(dpkg-query --show --showformat '${Version}' libvipl1)" = "$(dpkg-deb --field /trial/next/libvipl1_*.deb Version)" ] ||
    fail "the version after the upgrade"
greets
echo "trial: upgraded, and the program runs on"

dpkg --remove $(names /trial/first/*.deb) >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg --remove"; }
tester ./hello >/dev/null 2>&1 && fail "the program runs without the library"
dpkg --purge $(names /trial/first/*.deb) >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; fail "dpkg --purge"; }
everything >/tmp/after
diff /tmp/before /tmp/after || fail "something stayed"
[ ! -e /run/vipl ] || fail "/run/vipl stayed"
echo "trial: removed and purged; nothing stayed"
