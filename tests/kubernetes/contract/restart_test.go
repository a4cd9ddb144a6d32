package contract

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/kubernetes/pkg/volume/util"
)

// A restarted kubelet finds directories, and knows only the name of the driver and the name of the
// volume.
func TestARestartedKubeletTakesDownWhatItFinds(t *testing.T) {
	onEvery(t, func(t *testing.T, s *sandbox, d driver) {
		before := s.baseline()
		persistent, _ := d.provision("data", "xfs", 300*mib)
		spec, one := writable(persistent), pod("one")
		first := newKubelet(s)
		first.stage(spec)
		directory := first.start(spec, one)
		must(t, os.WriteFile(filepath.Join(directory, "file"), []byte("kept"), 0600))

		k := newKubelet(s)
		plugin, err := k.manager.FindPluginByName(d.name)
		must(t, err)
		found, err := constructVolumeSpec(plugin, filepath.Base(directory), directory)
		must(t, err)
		if found.Volume == nil || len(found.Volume.FlexVolume.Options) != 0 {
			t.Fatalf("kubelet knows more than it used to: %+v", found)
		}
		reached(1)
		k.stop(found, one)
		k.unstage(found)
		d.delete(persistent)
		before.expect("the volume was deleted")
	})
}

func TestARestartedKubeletFindsItsMountsAndMountsNothingTwice(t *testing.T) {
	onEvery(t, func(t *testing.T, s *sandbox, d driver) {
		before := s.baseline()
		persistent, _ := d.provision("data", "xfs", 300*mib)
		spec, one := writable(persistent), pod("one")
		first := newKubelet(s)
		first.stage(spec)
		first.start(spec, one)
		mounted := len(mounts("/"))

		k := newKubelet(s)
		device, _ := k.stage(spec)
		directory := k.start(spec, one)
		if len(mounts("/")) != mounted || len(k.calls.of("mount")) != 0 {
			t.Fatal("the restarted kubelet does not see the mount")
		}
		// kubelet may miss the mount: old kernels hide a bind mount of the same file system.
		arguments := first.calls.of("mount")[0]
		d.call("mount", arguments[0], arguments[1])
		if len(mounts("/")) != mounted {
			t.Fatal("mounted twice")
		}
		reached(2)
		must(t, k.expand(spec, device, directory, 320*mib, 300*mib))
		k.stop(spec, one)
		k.unstage(spec)
		d.delete(persistent)
		before.expect("the volume was deleted")
	})
}

// kubelet unmounts a device only if no other mount shows the same root of its file system.
func TestNothingOfAPodHoldsAStagedVolume(t *testing.T) {
	s := newNode(t)
	d := s.install(true, "")
	persistent, _ := d.provision("data", "xfs", 300*mib)
	k := newKubelet(s)
	spec := writable(persistent)
	_, global := k.stage(spec)
	references := func() bool {
		plugin, err := k.manager.FindDeviceMountablePluginBySpec(spec)
		must(t, err)
		found, err := plugin.GetDeviceMountRefs(global)
		must(t, err)
		return util.HasMountRefs(global, found)
	}
	for _, uid := range []string{"one", "two"} {
		k.start(spec, pod(uid))
	}
	if !references() {
		t.Fatal("kubelet would unmount the device under its pods")
	}
	for _, uid := range []string{"one", "two"} {
		k.stop(spec, pod(uid))
	}
	if references() {
		t.Fatal("kubelet would never unmount the device")
	}
	reached(2)
	k.unstage(spec)
	d.delete(persistent)
}
