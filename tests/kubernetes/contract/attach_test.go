package contract

import (
	"testing"
	"time"

	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/util/operationexecutor"
)

func TestAttachingIsRepeatedAndDetachingForgottenVolumesSucceeds(t *testing.T) {
	s := newNode(t)
	d := s.install(true, "")
	persistent, _ := d.provision("data", "xfs", 300*mib)
	k := newKubelet(s)
	spec := writable(persistent)
	attacher, err := k.attachable(spec).NewAttacher()
	must(t, err)
	detacher, err := k.attachable(spec).NewDetacher()
	must(t, err)
	expected := "/run/flexvol/volumes/" + id(persistent)
	for i := 0; i < 2; i++ {
		device, err := attacher.Attach(spec, nodeName)
		if err != nil || device != expected {
			t.Fatalf("attached as %q, %v", device, err)
		}
		reached(1)
	}
	// The node's status may have lost the device.
	for _, known := range []string{expected, ""} {
		device, err := attacher.WaitForAttach(spec, known, pod("one"), time.Minute)
		if err != nil || device != expected {
			t.Fatalf("waited for %q, got %q, %v", known, device, err)
		}
		reached(1)
	}
	must(t, detacher.Detach(spec.Name(), nodeName))
	must(t, detacher.Detach(spec.Name(), nodeName))
	d.delete(persistent)
	must(t, detacher.Detach(spec.Name(), nodeName))
	must(t, detacher.Detach("never-was", nodeName))
	reached(4)
}

// False, or a reply without attached, would let the controller attach the volume elsewhere.
func TestVerifyingAttachedVolumesTakesNoneAway(t *testing.T) {
	s := newNode(t)
	d := s.install(true, "")
	first, _ := d.provision("first", "xfs", 300*mib)
	second, _ := d.provision("second", "xfs", 300*mib)
	k := newKubelet(s)
	specs := []*volume.Spec{writable(first), writable(second)}
	attacher, err := k.attachable(specs[0]).NewAttacher()
	must(t, err)
	for i := 0; i < 3; i++ {
		attached, err := attacher.VolumesAreAttached(specs, nodeName)
		if err != nil || len(attached) != 0 {
			t.Fatalf("the controller would conclude %v, %v", attached, err)
		}
	}
	if asked := len(k.calls.of("isattached")); asked != 1 {
		t.Fatalf("isattached ran %d times", asked)
	}
	reached(2)
}

func TestAStagedVolumeServesPodsOneAfterTheOtherAndTogether(t *testing.T) {
	s := newNode(t)
	d := s.install(true, "")
	before := s.baseline()
	persistent, _ := d.provision("data", "xfs", 300*mib)
	k := newKubelet(s)
	spec, one, two := writable(persistent), pod("one"), pod("two")
	k.stage(spec)
	k.stage(spec)
	k.start(spec, one)
	k.start(spec, two)
	k.stop(spec, one)
	k.start(spec, one)
	k.stop(spec, two)
	k.stop(spec, one)
	k.stop(spec, one)
	k.unstage(spec)
	k.unstage(spec)
	d.delete(persistent)
	before.expect("the volume was deleted")
}

func TestTheControllersCheckOfANodeDetachesNothing(t *testing.T) {
	s := newNode(t)
	d := s.install(true, "")
	persistent, claim := d.provision("data", "xfs", 300*mib)
	n, one := newOperations(s, persistent, claim), pod("one")
	_, err := n.mount("data", one, false)
	must(t, err)
	var attached []operationexecutor.AttachedVolume
	for _, found := range n.world.GetAttachedVolumes() {
		attached = append(attached, found.AttachedVolume)
	}
	for i := 0; i < 2; i++ {
		operation, err := n.generator.GenerateVolumesAreAttachedFunc(attached, nodeName, n.world)
		must(t, err)
		_, err = n.run(&operation)
		must(t, err)
		if len(attached) != 1 || len(n.world.GetAttachedVolumes()) != 1 {
			t.Fatal("the volume of a running pod was taken for detached")
		}
		reached(1)
	}
	n.unmount(one)
	d.delete(persistent)
}
