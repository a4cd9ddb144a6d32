package contract

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager/cache"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/util"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/operationexecutor"
)

// node runs operations on volumes as kubelet's reconciler does, with its actual state of the world.
type node struct {
	*kubelet
	generator operationexecutor.OperationGenerator
	world     cache.ActualStateOfWorld
	recorder  *record.FakeRecorder
	// controller generates the operations of the controller manager, whose plugin manager has no prober.
	controller operationexecutor.OperationGenerator
}

func newOperations(s *sandbox, volumes *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) *node {
	s.t.Helper()
	k := newKubelet(s, volumes, claim)
	n := &node{kubelet: k, recorder: record.NewFakeRecorder(100), world: cache.NewActualStateOfWorld(nodeName, k.manager)}
	n.generator = newOperationGenerator(k.client, k.manager, n.recorder)
	manager := &volume.VolumePluginMgr{}
	must(s.t, manager.InitPlugins(nil, nil, newHost(s.t, s.kubelet(), k.client)))
	n.controller = newOperationGenerator(k.client, manager, n.recorder)
	return n
}

// run runs an operation to its end, as the executor does, and returns the text of its events.
func (n *node) run(operation interface {
	Run() (eventErr, detailedErr error)
}) (string, error) {
	_, err := operation.Run()
	var events []string
	for len(n.recorder.Events) > 0 {
		events = append(events, <-n.recorder.Events)
	}
	return strings.Join(events, "\n"), err
}

// request returns kubelet's desired state for a pod: the volume as the API server has it now.
func (n *node) request(name string, pod *v1.Pod, readOnly bool) operationexecutor.VolumeToMount {
	n.t.Helper()
	found, err := n.client.CoreV1().PersistentVolumes().Get(context.TODO(), name, metav1.GetOptions{})
	must(n.t, err)
	spec := volume.NewSpecFromPersistentVolume(found, readOnly)
	attachable := n.attachable(spec) != nil
	unique := util.GetUniqueVolumeNameFromSpecWithPod(util.GetUniquePodName(pod), n.plugin(spec), spec)
	if attachable {
		unique, err = util.GetUniqueVolumeNameFromSpec(n.plugin(spec), spec)
		must(n.t, err)
	}
	return operationexecutor.VolumeToMount{
		VolumeName:              unique,
		PodName:                 util.GetUniquePodName(pod),
		VolumeSpec:              spec,
		Pod:                     pod,
		PluginIsAttachable:      attachable,
		PluginIsDeviceMountable: attachable,
	}
}

// mount runs the operation that begins with waitforattach and ends with expandfs.
func (n *node) mount(name string, pod *v1.Pod, readOnly bool) (string, error) {
	n.t.Helper()
	request := n.request(name, pod, readOnly)
	if request.PluginIsAttachable {
		attacher, err := n.attachable(request.VolumeSpec).NewAttacher()
		must(n.t, err)
		request.DevicePath, err = attacher.Attach(request.VolumeSpec, nodeName)
		must(n.t, err)
	}
	must(n.t, markAttached(n.world, request))
	operation := n.generator.GenerateMountVolumeFunc(10*time.Minute, request, n.world, false)
	return n.run(&operation)
}

// mounted tells whether kubelet would start the pod's containers.
func (n *node) mounted(pod *v1.Pod) bool {
	return len(n.world.GetMountedVolumesForPod(util.GetUniquePodName(pod))) == 1
}

// unmount ends the pod, and removes the volume from the node if this was its last pod.
func (n *node) unmount(pod *v1.Pod) {
	n.t.Helper()
	for _, mounted := range n.world.GetAllMountedVolumes() {
		if mounted.PodUID == pod.UID {
			operation, err := n.generator.GenerateUnmountVolumeFunc(mounted.MountedVolume, n.world, n.s.path("kubelet/pods"))
			must(n.t, err)
			_, err = n.run(&operation)
			must(n.t, err)
			reached(1)
		}
	}
	for _, attached := range n.world.GetUnmountedVolumes() {
		if attached.DeviceMayBeMounted() {
			operation, err := n.generator.GenerateUnmountDeviceFunc(attached.AttachedVolume, n.world, hostutil.NewHostUtil())
			must(n.t, err)
			_, err = n.run(&operation)
			must(n.t, err)
			reached(1)
		}
	}
}

// expandInUse runs the operation for a mounted volume that became larger.
func (n *node) expandInUse(name string, pod *v1.Pod, readOnly bool, from string) (string, error) {
	n.t.Helper()
	request := n.request(name, pod, readOnly)
	for _, attached := range n.world.GetAttachedVolumes() {
		if attached.VolumeName == request.VolumeName {
			request.DevicePath = attached.DevicePath
		}
	}
	operation, err := generateExpandInUse(n.generator, request, n.world, resource.MustParse(from))
	must(n.t, err)
	return n.run(&operation)
}

// claim returns the claim as the API server has it now.
func (n *node) claim(name string) *v1.PersistentVolumeClaim {
	n.t.Helper()
	found, err := n.client.CoreV1().PersistentVolumeClaims("default").Get(context.TODO(), name, metav1.GetOptions{})
	must(n.t, err)
	return found
}

// ask edits the claim, and runs the controller's operation for that.
func (n *node) ask(name, size string) {
	n.t.Helper()
	claim := n.claim(name)
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	claim, err := n.client.CoreV1().PersistentVolumeClaims("default").Update(context.TODO(), claim, metav1.UpdateOptions{})
	must(n.t, err)
	found, err := n.client.CoreV1().PersistentVolumes().Get(context.TODO(), name, metav1.GetOptions{})
	must(n.t, err)
	operation, err := generateExpand(n.controller, claim, found)
	must(n.t, err)
	if _, err := n.run(&operation); err != nil {
		n.t.Fatalf("the controller: %v", err)
	}
	raised, err := n.client.CoreV1().PersistentVolumes().Get(context.TODO(), name, metav1.GetOptions{})
	must(n.t, err)
	if found := raised.Spec.Capacity[v1.ResourceStorage]; found.Cmp(resource.MustParse(size)) != 0 {
		n.t.Fatalf("the controller raised the volume to %s", found.String())
	}
	n.expectCondition(name, v1.PersistentVolumeClaimFileSystemResizePending, true)
}

// expectCondition checks a condition of the claim.
func (n *node) expectCondition(name string, condition v1.PersistentVolumeClaimConditionType, expected bool) {
	n.t.Helper()
	found := false
	for _, one := range n.claim(name).Status.Conditions {
		found = found || one.Type == condition && one.Status == v1.ConditionTrue
	}
	if found != expected {
		n.t.Fatalf("%s of the claim: %t, expected %t", condition, found, expected)
	}
	reached(1)
}

// expectReason checks whether the claim says why it does not grow.
func (n *node) expectReason(name, reason string, expected bool) {
	n.t.Helper()
	said := ""
	for _, condition := range n.claim(name).Status.Conditions {
		if condition.Type == "NodeResizeError" {
			said = condition.Message
		}
	}
	if (said != "") != expected || expected && !strings.Contains(said, reason) || strings.Contains(said, n.s.root) {
		n.t.Fatalf("the claim says %q", said)
	}
	reached(1)
}

// expectCapacity checks the capacity in the claim's status.
func (n *node) expectCapacity(name, size string) {
	n.t.Helper()
	if found := n.claim(name).Status.Capacity[v1.ResourceStorage]; found.Cmp(resource.MustParse(size)) != 0 {
		n.t.Fatalf("the claim has %s, expected %s", found.String(), size)
	}
	reached(1)
}

// inBothModes runs a test with and without attach.
func inBothModes(t *testing.T, test func(*testing.T, *sandbox, driver)) {
	for _, attach := range []bool{false, true} {
		attach := attach
		t.Run(fmt.Sprintf("attach %t", attach), func(t *testing.T) {
			s := newNode(t)
			test(t, s, s.install(attach, ""))
		})
	}
}
