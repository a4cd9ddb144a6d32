package contract

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/volume"
)

const group = int64(2468)

// withGroup gives a pod an fsGroup.
func withGroup(pod *v1.Pod) *v1.Pod {
	group := group
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	return pod
}

// groupOf is the group of a file.
func groupOf(t *testing.T, path string) int64 {
	t.Helper()
	found, err := os.Stat(path)
	must(t, err)
	return int64(found.Sys().(*syscall.Stat_t).Gid)
}

// refusal returns the error of a mount that must be refused, and checks that nothing is left.
func (k *kubelet) refusal(spec *volume.Spec, pod *v1.Pod, words ...string) string {
	k.t.Helper()
	before := k.s.baseline()
	err := k.setUp(spec, pod)
	if err == nil {
		k.t.Fatal("mounted, and should not have been")
	}
	before.expect("the mount was refused")
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			k.t.Fatalf("no %q in %q", word, err)
		}
		reached(1)
	}
	// The error becomes an event, which every user of the namespace can read.
	if strings.Contains(err.Error(), k.s.root) {
		k.t.Fatalf("the refusal tells of paths: %v", err)
	}
	reached(2)
	return err.Error()
}

func TestSecretsAndTheGroupArriveAtMountAlone(t *testing.T) {
	onEvery(t, func(t *testing.T, s *sandbox, d driver) {
		before := s.baseline()
		persistent, _ := d.provision("data", "xfs", 300*mib)
		persistent.Spec.FlexVolume.SecretRef = &v1.SecretReference{Name: "key", Namespace: "default"}
		secret := &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "key", Namespace: "default"},
			Type:       v1.SecretType(d.name),
			Data:       map[string][]byte{"password": []byte("open sesame, says Ali Baba")},
		}
		coded := base64.StdEncoding.EncodeToString(secret.Data["password"])
		k := newKubelet(s, secret)
		spec, one := writable(persistent), withGroup(pod("one"))
		device, _ := k.stage(spec)
		directory := k.start(spec, one)

		options := k.calls.options(t, "mount")
		for key, expected := range map[string]string{
			"kubernetes.io/secret/password":     coded,
			"kubernetes.io/mounterArgs.FsGroup": "2468",
			"kubernetes.io/pod.name":            "pod-one",
			"kubernetes.io/pod.namespace":       "default",
			"kubernetes.io/pod.uid":             "one",
			"kubernetes.io/serviceAccount.name": "default",
			"kubernetes.io/pvOrVolumeName":      "data",
			"kubernetes.io/readwrite":           "rw",
			"kubernetes.io/fsType":              persistent.Spec.FlexVolume.FSType,
			"handle":                            persistent.Spec.FlexVolume.Options["handle"],
		} {
			if options[key] != expected {
				t.Fatalf("%s is %q, expected %q", key, options[key], expected)
			}
			reached(1)
		}
		// The pod's group can write: kubelet changed the group, or the driver that reports fsGroup: false did.
		if found := groupOf(t, directory); found != group {
			t.Fatalf("the volume belongs to the group %d", found)
		}
		reached(1)

		must(t, k.expand(spec, device, directory, 320*mib, 300*mib))
		k.stop(spec, one)
		k.unstage(spec)
		for _, callout := range []string{"attach", "waitforattach", "mountdevice", "expandfs", "unmount", "unmountdevice", "detach"} {
			for _, call := range k.calls.of(callout) {
				if strings.Contains(strings.Join(call, " "), coded) {
					t.Fatalf("%s was told the secret", callout)
				}
			}
		}

		// kubelet logs the arguments of calls with a non-zero exit code.
		d.delete(persistent)
		k.refusal(spec, pod("two"), "no such volume")
		if said := klogged.take(); strings.Contains(said, coded) {
			t.Fatalf("kubelet logged the secret:\n%s", said)
		}
		reached(2)
		before.expect("the volume was deleted")
	})
}

func TestFilesAreGivenToThePodsGroup(t *testing.T) {
	for _, attach := range []bool{false, true} {
		s := newNode(t)
		d := s.install(attach, "")
		persistent, _ := d.provision("data", "ext4", 64*mib)
		k := newKubelet(s)
		spec, one, two := writable(persistent), pod("one"), withGroup(pod("two"))
		k.stage(spec)
		file := filepath.Join(k.start(spec, one), "file")
		must(t, os.WriteFile(file, nil, 0600))
		k.stop(spec, one)
		file = filepath.Join(k.start(spec, two), "file")
		if found := groupOf(t, file); found != group {
			t.Fatalf("the file belongs to the group %d", found)
		}
		reached(1)
		k.stop(spec, two)
		k.unstage(spec)
		d.delete(persistent)
	}
}

func TestAReadOnlyPodWritesNothingAndItsNeighbourDoes(t *testing.T) {
	onEvery(t, func(t *testing.T, s *sandbox, d driver) {
		before := s.baseline()
		persistent, _ := d.provision("data", "xfs", 300*mib)
		k := newKubelet(s)
		one, two := withGroup(pod("one")), pod("two")
		k.stage(readOnly(persistent))
		reads := k.start(readOnly(persistent), one)
		writes := k.start(writable(persistent), two)
		if err := os.WriteFile(filepath.Join(reads, "file"), nil, 0600); err == nil {
			t.Fatal("written through a read-only mount")
		}
		must(t, os.WriteFile(filepath.Join(writes, "file"), []byte("seen"), 0600))
		if content, err := os.ReadFile(filepath.Join(reads, "file")); string(content) != "seen" {
			t.Fatalf("the reader sees %q, %v", content, err)
		}
		// kubelet does not change the group of a read-only volume.
		if found := groupOf(t, reads); found == group {
			t.Fatal("a read-only pod changed the volume's group")
		}
		reached(4)
		k.stop(readOnly(persistent), one)
		k.stop(writable(persistent), two)
		k.unstage(readOnly(persistent))
		d.delete(persistent)
		before.expect("the volume was deleted")
	})
}

func TestAnInlineVolumeIsRefusedInWordsForItsAuthor(t *testing.T) {
	onEvery(t, func(t *testing.T, s *sandbox, d driver) {
		persistent, _ := d.provision("data", "xfs", 300*mib)
		k := newKubelet(s)
		source := v1.FlexVolumeSource{Driver: d.name}
		// Not even with the name of a persistent volume.
		k.refusal(inline("data", source), pod("one"), "handle")
		source.Options = map[string]string{"handle": "00000000000000000000000000000000"}
		k.refusal(inline("data", source), pod("one"), "no such volume")
		source.Options = map[string]string{"path": "/etc"}
		k.refusal(inline("data", source), pod("one"), "path")

		stranger := pod("one")
		stranger.Namespace = "elsewhere"
		source.Options = persistent.Spec.FlexVolume.Options
		k.refusal(inline("mine", source), stranger, "namespace")
		k.start(inline("mine", source), pod("two"))
		k.stop(inline("mine", source), pod("two"))
		d.delete(persistent)
	})
}

func TestAPodOfAnotherNamespaceIsRefusedAlsoWhereTheVolumeIsStaged(t *testing.T) {
	onEvery(t, func(t *testing.T, s *sandbox, d driver) {
		before := s.baseline()
		persistent, _ := d.provision("data", "xfs", 300*mib)
		k := newKubelet(s)
		spec, stranger := writable(persistent), pod("one")
		stranger.Namespace = "elsewhere"
		k.stage(spec)
		k.refusal(spec, stranger, "namespace")
		k.unstage(spec)
		d.delete(persistent)
		before.expect("the volume was deleted")
	})
}
