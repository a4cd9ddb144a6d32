package contract

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/volume"
)

const nodeName = types.NodeName("node-1")

// kubelet is kubelet's volume code from the plugin manager down. A second one in the same sandbox
// stands for kubelet after a restart: it has no state.
type kubelet struct {
	t       *testing.T
	s       *sandbox
	manager *volume.VolumePluginMgr
	client  *fake.Clientset
	// calls are the calls that this kubelet made.
	calls *calls
}

func newKubelet(s *sandbox, objects ...runtime.Object) *kubelet {
	s.t.Helper()
	k := &kubelet{t: s.t, s: s, manager: &volume.VolumePluginMgr{}, client: fake.NewSimpleClientset(objects...), calls: &calls{}}
	must(s.t, k.manager.InitPlugins(nil, newProber(s.t, s.plugins(), k.calls), newHost(s.t, s.kubelet(), k.client)))
	return k
}

// pod is a pod of the namespace default.
func pod(uid string) *v1.Pod {
	made := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod-" + uid, Namespace: "default", UID: types.UID(uid)}}
	made.Spec.NodeName = string(nodeName)
	made.Spec.ServiceAccountName = "default"
	return made
}

// writable and readOnly are the two ways in which pods refer to a claim.
func writable(persistent *v1.PersistentVolume) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(persistent, false)
}

func readOnly(persistent *v1.PersistentVolume) *volume.Spec {
	return volume.NewSpecFromPersistentVolume(persistent, true)
}

// inline is a volume that is specified in the pod itself.
func inline(name string, source v1.FlexVolumeSource) *volume.Spec {
	return volume.NewSpecFromVolume(&v1.Volume{Name: name, VolumeSource: v1.VolumeSource{FlexVolume: &source}})
}

func (k *kubelet) plugin(spec *volume.Spec) volume.VolumePlugin {
	k.t.Helper()
	found, err := k.manager.FindPluginBySpec(spec)
	must(k.t, err)
	return found
}

// attachable returns the plugin if it attaches, and nil otherwise.
func (k *kubelet) attachable(spec *volume.Spec) volume.AttachableVolumePlugin {
	k.t.Helper()
	found, err := k.manager.FindAttachablePluginBySpec(spec)
	must(k.t, err)
	return found
}

// stage does what precedes a volume's first pod on the node: attach, by the controller manager,
// then waitforattach and mountdevice. It returns the device and the directory, both empty without
// attach.
func (k *kubelet) stage(spec *volume.Spec) (device, directory string) {
	k.t.Helper()
	plugin := k.attachable(spec)
	if plugin == nil {
		return "", ""
	}
	attacher, err := plugin.NewAttacher()
	must(k.t, err)
	device, err = attacher.Attach(spec, nodeName)
	must(k.t, err)
	device, err = attacher.WaitForAttach(spec, device, pod("any"), 10*time.Minute)
	must(k.t, err)
	mounter := k.deviceMounter(spec)
	directory, err = mounter.GetDeviceMountPath(spec)
	must(k.t, err)
	must(k.t, mountDevice(mounter, spec, device, directory))
	mountAt(k.t, directory)
	reached(4)
	return device, directory
}

func (k *kubelet) deviceMounter(spec *volume.Spec) volume.DeviceMounter {
	k.t.Helper()
	plugin, err := k.manager.FindDeviceMountablePluginBySpec(spec)
	must(k.t, err)
	mounter, err := plugin.NewDeviceMounter()
	must(k.t, err)
	return mounter
}

// unstage undoes stage, with only the information that kubelet and the controller manager have then.
func (k *kubelet) unstage(spec *volume.Spec) {
	k.t.Helper()
	plugin := k.attachable(spec)
	if plugin == nil {
		return
	}
	directory, err := k.deviceMounter(spec).GetDeviceMountPath(spec)
	must(k.t, err)
	detacher, err := plugin.NewDetacher()
	must(k.t, err)
	must(k.t, detacher.UnmountDevice(directory))
	must(k.t, detacher.Detach(spec.Name(), nodeName))
	reached(2)
}

// setUp mounts the volume for a pod.
func (k *kubelet) setUp(spec *volume.Spec, pod *v1.Pod) error {
	k.t.Helper()
	mounter, err := newMounter(k.plugin(spec), spec, pod)
	must(k.t, err)
	var arguments volume.MounterArgs
	if context := pod.Spec.SecurityContext; context != nil {
		arguments.FsGroup = context.FSGroup
	}
	return mounter.SetUp(arguments)
}

// start is setUp that must succeed. It returns the pod's directory.
func (k *kubelet) start(spec *volume.Spec, pod *v1.Pod) string {
	k.t.Helper()
	must(k.t, k.setUp(spec, pod))
	directory := k.directory(spec, pod)
	mountAt(k.t, directory)
	reached(2)
	return directory
}

// stop unmounts the volume of a pod. kubelet uses only the volume's name and the pod's uid.
func (k *kubelet) stop(spec *volume.Spec, pod *v1.Pod) {
	k.t.Helper()
	plugin, err := k.manager.FindPluginByName(k.plugin(spec).GetPluginName())
	must(k.t, err)
	unmounter, err := plugin.NewUnmounter(spec.Name(), pod.UID)
	must(k.t, err)
	must(k.t, unmounter.TearDown())
	if left := mounts(k.directory(spec, pod)); len(left) > 0 {
		k.t.Fatalf("still mounted after unmount: %v", left)
	}
	reached(2)
}

// directory returns the path at which the pod sees the volume.
func (k *kubelet) directory(spec *volume.Spec, pod *v1.Pod) string {
	k.t.Helper()
	mounter, err := newMounter(k.plugin(spec), spec, pod)
	must(k.t, err)
	path := mounter.GetPath()
	if expected := filepath.Join(k.s.kubelet(), "pods", string(pod.UID), "volumes"); filepath.Dir(filepath.Dir(path)) != expected {
		k.t.Fatalf("the pod's directory is %s", path)
	}
	return path
}

// expand does what kubelet does when the persistent volume is larger than its claim's status.
func (k *kubelet) expand(spec *volume.Spec, device, directory string, to, from int64) error {
	k.t.Helper()
	plugin, err := k.manager.FindNodeExpandablePluginBySpec(spec)
	must(k.t, err)
	if plugin == nil || !plugin.RequiresFSResize() {
		k.t.Fatal("kubelet would never grow this volume")
	}
	done, err := plugin.NodeExpand(volume.NodeResizeOptions{
		VolumeSpec:      spec,
		DevicePath:      device,
		DeviceMountPath: directory,
		NewSize:         *resource.NewQuantity(to, resource.BinarySI),
		OldSize:         *resource.NewQuantity(from, resource.BinarySI),
	})
	if err == nil && !done {
		return fmt.Errorf("kubelet does not call it done")
	}
	return err
}
