package contract

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/volume"
)

// host is Kubernetes' volume testing host, with the mount table of this machine instead of a list
// in memory.
type host struct {
	volume.VolumeHost
	volume.KubeletVolumeHost
}

// GetNodeLabels identifies the node. kubelet mounts no volume with affinity to another node.
func (*host) GetNodeLabels() (map[string]string, error) {
	return map[string]string{v1.LabelHostname: string(nodeName)}, nil
}

func newHost(t *testing.T, root string, client clientset.Interface) volume.VolumeHost {
	testing := newTestingHost(t, root, client)
	return &host{VolumeHost: testing, KubeletVolumeHost: testing}
}
