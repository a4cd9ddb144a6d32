package contract

import (
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestAClaimGrowsWhileItsPodRuns(t *testing.T) {
	inBothModes(t, func(t *testing.T, s *sandbox, d driver) {
		before := s.baseline()
		persistent, claim := d.provision("data", "xfs", 300*mib)
		n, one := newOperations(s, persistent, claim), pod("one")
		_, err := n.mount("data", one, false)
		must(t, err)
		directory := n.directory(writable(persistent), one)
		n.ask("data", "600Mi")
		expectSize(t, "the device before kubelet acts", deviceSize(t, directory), 300*mib)

		events, err := n.expandInUse("data", one, false, "300Mi")
		must(t, err)
		if !strings.Contains(events, "FileSystemResizeSuccessful") {
			t.Fatalf("events: %s", events)
		}
		expectSize(t, "the device", deviceSize(t, directory), 600*mib)
		expectAbout(t, "the file system", space(t, directory), 600*mib)
		n.expectCapacity("data", "600Mi")
		n.expectCondition("data", v1.PersistentVolumeClaimFileSystemResizePending, false)
		n.unmount(one)
		d.delete(persistent)
		before.expect("the pod and the volume are gone")
	})
}

func TestAClaimThatGrewWithoutAPodIsLargeWhenItsPodStarts(t *testing.T) {
	inBothModes(t, func(t *testing.T, s *sandbox, d driver) {
		before := s.baseline()
		persistent, claim := d.provision("data", "xfs", 300*mib)
		n, one, two := newOperations(s, persistent, claim), pod("one"), pod("two")
		_, err := n.mount("data", one, false)
		must(t, err)
		n.unmount(one)
		n.ask("data", "600Mi")
		_, err = n.mount("data", two, false)
		must(t, err)
		if !n.mounted(two) {
			t.Fatal("kubelet would not start the pod")
		}
		directory := n.directory(writable(persistent), two)
		expectSize(t, "the device", deviceSize(t, directory), 600*mib)
		expectAbout(t, "the file system", space(t, directory), 600*mib)
		n.expectCapacity("data", "600Mi")
		n.expectCondition("data", v1.PersistentVolumeClaimFileSystemResizePending, false)
		n.unmount(two)
		expectSize(t, "the superblock", superblockSize(t, d.image(persistent)), 600*mib)
		d.delete(persistent)
		before.expect("the pods and the volume are gone")
	})
}

func TestAPodStartsWhenTheRoomIsThereAndReadsWhyNotBefore(t *testing.T) {
	inBothModes(t, func(t *testing.T, s *sandbox, d driver) {
		before := s.baseline()
		persistent, claim := d.provision("data", "xfs", 300*mib)
		n, one := newOperations(s, persistent, claim), pod("one")
		filler := s.fillDisk(150 * mib)
		n.ask("data", "600Mi")
		events, err := n.mount("data", one, false)
		if err == nil || n.mounted(one) {
			t.Fatal("the pod has a volume that is too small, and would start")
		}
		if !strings.Contains(events, "600Mi") || strings.Contains(events, s.pool()) {
			t.Fatalf("events: %s", events)
		}
		n.expectCapacity("data", "300Mi")
		must(t, os.Remove(filler))
		_, err = n.mount("data", one, false)
		must(t, err)
		n.expectCapacity("data", "600Mi")
		expectSize(t, "the device", deviceSize(t, n.directory(writable(persistent), one)), 600*mib)
		n.unmount(one)
		d.delete(persistent)
		before.expect("the pod and the volume are gone")
	})
}

func TestARunningPodKeepsItsVolumeWhileThereIsNoRoomToGrow(t *testing.T) {
	inBothModes(t, func(t *testing.T, s *sandbox, d driver) {
		persistent, claim := d.provision("data", "xfs", 300*mib)
		n, one := newOperations(s, persistent, claim), pod("one")
		_, err := n.mount("data", one, false)
		must(t, err)
		directory := n.directory(writable(persistent), one)
		filler := s.fillDisk(150 * mib)
		n.ask("data", "600Mi")
		events, err := n.expandInUse("data", one, false, "300Mi")
		if err == nil || !strings.Contains(events, "VolumeResizeFailed") || !strings.Contains(events, "600Mi") {
			t.Fatalf("%v, events: %s", err, events)
		}
		if !n.mounted(one) {
			t.Fatal("kubelet takes the volume of the running pod for lost")
		}
		n.expectReason("data", "600Mi", claimsTell)
		must(t, os.WriteFile(directory+"/file", nil, 0600))
		n.expectCapacity("data", "300Mi")
		must(t, os.Remove(filler))
		_, err = n.expandInUse("data", one, false, "300Mi")
		must(t, err)
		n.expectCapacity("data", "600Mi")
		n.expectReason("data", "600Mi", false)
		expectSize(t, "the device", deviceSize(t, directory), 600*mib)
		n.unmount(one)
		d.delete(persistent)
	})
}

func TestAReadOnlyPodStartsThoughItsVolumeIsToGrow(t *testing.T) {
	inBothModes(t, func(t *testing.T, s *sandbox, d driver) {
		persistent, claim := d.provision("data", "xfs", 300*mib)
		n, one, two := newOperations(s, persistent, claim), pod("one"), pod("two")
		n.ask("data", "600Mi")
		_, err := n.mount("data", one, true)
		must(t, err)
		if ran := n.calls.names(); strings.Contains(ran, "expandfs") {
			t.Fatalf("kubelet ran %s", ran)
		}
		n.unmount(one)
		_, err = n.mount("data", two, false)
		must(t, err)
		n.expectCapacity("data", "600Mi")
		n.unmount(two)
		d.delete(persistent)
		reached(1)
	})
}

// Up to 1.20 kubelet forgets the mount of a pod whose volume could not grow, and never unmounts it.
func TestAPodThatNeverStartedForWantOfRoomLeavesNothing(t *testing.T) {
	inBothModes(t, func(t *testing.T, s *sandbox, d driver) {
		before := s.baseline()
		persistent, claim := d.provision("data", "xfs", 300*mib)
		n, one := newOperations(s, persistent, claim), pod("one")
		filler := s.fillDisk(150 * mib)
		n.ask("data", "600Mi")
		if _, err := n.mount("data", one, false); err == nil {
			t.Fatal("mounted a volume that is too small")
		}
		n.unmount(one)
		spec := writable(persistent)
		if forgotten := len(mounts(n.directory(spec, one))) > 0; forgotten != (forgetsMounts && !d.attach) {
			t.Fatalf("kubelet forgot the mount: %t", forgotten)
		}
		// A restarted kubelet finds the directory and does this.
		n.stop(spec, one)
		n.unstage(spec)
		must(t, os.Remove(filler))
		d.delete(persistent)
		before.expect("the pod and the volume are gone")
		reached(1)
	})
}
