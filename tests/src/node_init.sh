# The first process of a node: it builds the node's view of the machine, holds its namespaces and
# reaps orphans. When standard input ends (the test is gone) it exits, and all of the node with it.
# From the environment: NODE, DIR (the node's folder), BASE (the cluster's), GPUS, ADDRESS, SHOWN
# (folders shown read-only, one a line), ROOT (a system whose programs the node runs in place of this machine's, or empty).
set -eu
umask 022
read -r pid _ </proc/self/stat # the old /proc: the id as the test sees it
echo "pid $pid"
echo "$NODE" >/proc/sys/kernel/hostname
mapfile -t shown <<<"$SHOWN"

# Take hold of the shown folders before private ones cover them.
i=0
for path in "${shown[@]}"; do
  [ -n "$path" ] || continue
  mkdir -p "$DIR/shown/$i"
  mount --rbind "$path" "$DIR/shown/$i"
  i=$((i + 1))
done

# Another system becomes the node's root, below a private, writable layer; with the cluster's folder in it, and with this
# machine's users, whose files those are.
if [ -n "$ROOT" ]; then
  mount -t tmpfs -o mode=755 root /mnt
  mkdir /mnt/upper /mnt/work /mnt/root
  mount -t overlay -o "lowerdir=$ROOT,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
  cd /mnt/root
  mkdir -p ".$BASE" dev proc sys run tmp home mnt
  for path in "$BASE" /dev /proc /sys; do mount --rbind "$path" ".$path"; done
  cp /etc/passwd /etc/group /etc/nsswitch.conf etc/
  touch etc/hosts
  pivot_root . mnt
  umount -l /mnt
  cd /
fi

mount -t proc proc /proc
mount --rbind /sys/fs/cgroup "$DIR/hold"
mount -t sysfs sysfs /sys
mount --move "$DIR/hold" /sys/fs/cgroup

# Private, writable layers over folders that all nodes would share otherwise. On tmpfs: overlayfs
# takes that as its upper layer everywhere, also inside a container.
if [ -z "$ROOT" ]; then
  mount -t tmpfs -o mode=755 layers "$DIR/layers"
  for path in /etc /opt /var/lib /var/log; do
    mkdir -p "$DIR/layers$path/upper" "$DIR/layers$path/work"
    mount -t overlay -o "lowerdir=$path,upperdir=$DIR/layers$path/upper,workdir=$DIR/layers$path/work" overlay "$path"
  done
fi
mkdir -p /etc/aimaster /etc/slurm /opt/aimaster
mount --bind "$BASE/etc/aimaster" /etc/aimaster
mount --bind "$BASE/etc/slurm" /etc/slurm
mount --bind "$BASE/etc/hosts" /etc/hosts
mount --bind "$BASE/opt" /opt/aimaster

# A /dev of its own: own /dev/log, own /dev/shm, own terminals, and GPUs.
mount -t tmpfs -o mode=755 dev "$DIR/dev"
shopt -s nullglob
cp -a /dev/{null,zero,full,random,urandom,tty,fd,stdin,stdout,stderr} /dev/nvidia* /dev/infiniband "$DIR/dev" 2>/dev/null || :
mkdir "$DIR/dev/pts" "$DIR/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$DIR/dev/pts"
mount -t tmpfs -o mode=1777 shm "$DIR/dev/shm"
ln -s pts/ptmx "$DIR/dev/ptmx"
ln -s /run/dev-log "$DIR/dev/log"
for ((gpu = 0; gpu < GPUS; gpu++)); do mknod -m 666 "$DIR/dev/fakegpu$gpu" c 1 3; done
mount --rbind "$DIR/dev" /dev

mount --bind "$DIR/run" /run
mount --bind "$DIR/spool" /var/spool
mount --bind "$BASE/home" /home
mount --bind "$DIR/tmp" /tmp
i=0
for path in "${shown[@]}"; do
  [ -n "$path" ] || continue
  mkdir -p "$path"
  mount --rbind "$DIR/shown/$i" "$path"
  mount -o remount,bind,ro "$path"
  i=$((i + 1))
done

read -r _ # the test has plugged the cable in
ip -batch - <<CONFIG
link set lo up
addr add $ADDRESS/24 dev eth0
link set eth0 up
CONFIG
echo ready
while read -r _; do :; done
