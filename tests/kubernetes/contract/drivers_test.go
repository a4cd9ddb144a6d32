package contract

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// driver is an installed driver.
type driver struct {
	s *sandbox
	// name is vendor/driver, as in persistent volumes.
	name string
	// attach tells whether Kubernetes attaches before it mounts.
	attach bool
	// block tells whether a volume is a block device, and so has a size of its own.
	block bool
	// ours tells whether this is the repository's driver and not an example of a vendor's.
	ours bool
}

// kinds are the drivers that every release of Kubernetes must work with.
var kinds = []struct {
	name    string
	install func(*sandbox) driver
}{
	{"without attach", func(s *sandbox) driver { return s.install(false, "") }},
	{"with attach", func(s *sandbox) driver { return s.install(true, "") }},
	{"hello-block", func(s *sandbox) driver { return s.installExample("hello-block") }},
	{"hello-directory", func(s *sandbox) driver { return s.installExample("hello-directory") }},
}

// install installs this repository's driver as people do.
func (s *sandbox) install(attach bool, more string) driver {
	s.t.Helper()
	config := s.path("disk.toml")
	text := fmt.Sprintf("backend = \"loop\"\nattach = %t\n[pools.default]\npath = %q\nreserve = \"64Mi\"\n%s",
		attach, s.pool(), more)
	must(s.t, os.WriteFile(config, []byte(text), 0600))
	d := driver{s: s, name: "flexvol.test/disk", attach: attach, block: true, ours: true}
	s.flexvol("install", "--name", d.name, "--plugin-dir", s.plugins(), "--config", config)
	return d
}

// installExample installs a driver of `drivers/` as its vendor would: on the sandbox's pool, and
// atomically for kubelet.
func (s *sandbox) installExample(name string) driver {
	s.t.Helper()
	d := driver{s: s, name: "example.com/" + name, block: name == "hello-block"}
	executable, err := os.ReadFile(filepath.Join(built, name))
	must(s.t, err)
	hidden := filepath.Join(s.plugins(), ".new")
	must(s.t, os.Mkdir(hidden, 0755))
	must(s.t, os.WriteFile(filepath.Join(hidden, name), executable, 0755))
	must(s.t, os.Symlink(s.pool(), filepath.Join(hidden, ".pool")))
	must(s.t, os.Rename(hidden, filepath.Dir(d.executable())))
	return d
}

func (d driver) executable() string {
	return filepath.Join(d.s.plugins(), strings.Replace(d.name, "/", "~", 1), filepath.Base(d.name))
}

// call makes a callout that kubelet does not make.
func (d driver) call(arguments ...string) reply {
	d.s.t.Helper()
	var said reply
	output, _ := exec.Command(d.executable(), arguments...).CombinedOutput()
	if err := json.Unmarshal(output, &said); err != nil {
		d.s.t.Fatalf("%v: %v: %s", arguments, err, output)
	}
	if said.Status != "Success" {
		d.s.t.Fatalf("%v: %s", arguments, output)
	}
	return said
}

type reply struct {
	Status  string            `json:"status"`
	Options map[string]string `json:"options"`
	FSType  string            `json:"fsType"`
}

// provision makes a volume for a claim in the namespace default, and returns the objects that the
// API server would have. The output of the command that creates it is decoded strictly, so that
// fields unknown to this release of Kubernetes are errors.
func (d driver) provision(name, filesystem string, size int64) (*v1.PersistentVolume, *v1.PersistentVolumeClaim) {
	d.s.t.Helper()
	if d.ours {
		return d.create(name, filesystem, size)
	}
	request, err := json.Marshal(map[string]string{
		"kubernetes.io/fsType":         filesystem,
		"kubernetes.io/pvOrVolumeName": name,
		"kubernetes.io/pvc.namespace":  "default",
		"requestBytes":                 fmt.Sprint(size),
	})
	must(d.s.t, err)
	said := d.call("provision", string(request))
	quantity := v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	volume.Spec.Capacity = quantity
	volume.Spec.AccessModes = modes
	volume.Spec.FlexVolume = &v1.FlexPersistentVolumeSource{Driver: d.name, FSType: said.FSType, Options: said.Options}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	claim.Spec.AccessModes = modes
	claim.Spec.VolumeName = name
	claim.Spec.Resources.Requests = quantity
	return bind(volume, claim)
}

func (d driver) create(name, filesystem string, size int64) (*v1.PersistentVolume, *v1.PersistentVolumeClaim) {
	d.s.t.Helper()
	var list struct{ Items []json.RawMessage }
	must(d.s.t, json.Unmarshal(d.s.flexvol("create", name, "--size", fmt.Sprint(size), "--fs", filesystem,
		"--driver", d.name, "--plugin-dir", d.s.plugins(), "--node", string(nodeName), "--with-storage-class", "-o", "json"), &list))
	var class storagev1.StorageClass
	var volume v1.PersistentVolume
	var claim v1.PersistentVolumeClaim
	for _, item := range list.Items {
		var kind metav1.TypeMeta
		must(d.s.t, json.Unmarshal(item, &kind))
		object, known := map[string]interface{}{
			"StorageClass":          &class,
			"PersistentVolume":      &volume,
			"PersistentVolumeClaim": &claim,
		}[kind.Kind]
		if !known {
			d.s.t.Fatalf("create printed a %q", kind.Kind)
		}
		decoder := json.NewDecoder(bytes.NewReader(item))
		decoder.DisallowUnknownFields()
		must(d.s.t, decoder.Decode(object))
		reached(1)
	}
	if class.AllowVolumeExpansion == nil || !*class.AllowVolumeExpansion {
		d.s.t.Fatal("claims of the printed storage class do not grow")
	}
	return bind(&volume, &claim)
}

// bind binds them as Kubernetes' persistent volume controller does.
func bind(volume *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolume, *v1.PersistentVolumeClaim) {
	volume.Spec.ClaimRef = &v1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name}
	volume.Status.Phase = v1.VolumeBound
	claim.Status.Phase = v1.ClaimBound
	claim.Status.Capacity = v1.ResourceList{v1.ResourceStorage: volume.Spec.Capacity[v1.ResourceStorage]}
	return volume, claim
}

// delete removes the volume, as the provisioner of external-storage does.
func (d driver) delete(volume *v1.PersistentVolume) {
	d.s.t.Helper()
	options := map[string]string{"kubernetes.io/pvOrVolumeName": volume.Name}
	for key, value := range volume.Spec.FlexVolume.Options {
		options[key] = value
	}
	text, err := json.Marshal(options)
	must(d.s.t, err)
	d.call("delete", string(text))
}

// id returns the name of the volume on the node.
func id(volume *v1.PersistentVolume) string {
	digest := sha256.Sum256([]byte(volume.Spec.FlexVolume.Options["handle"]))
	return hex.EncodeToString(digest[:16])
}

// image returns the path of the volume's file in the pool.
func (d driver) image(volume *v1.PersistentVolume) string {
	return filepath.Join(d.s.pool(), "volumes", id(volume))
}
