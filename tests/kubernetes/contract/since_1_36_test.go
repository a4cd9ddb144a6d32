//go:build kubernetes1.36

package contract

import (
	"context"
	"testing"

	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/flexvolume"
	"k8s.io/utils/exec"
)

func newProber(t *testing.T, plugins string, runner exec.Interface) volume.DynamicPluginProber {
	context, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return flexvolume.GetDynamicPluginProber(context, plugins, runner)
}
