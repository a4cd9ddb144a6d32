//go:build !kubernetes1.36

package contract

import (
	"testing"

	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/flexvolume"
	"k8s.io/utils/exec"
)

func newProber(_ *testing.T, plugins string, runner exec.Interface) volume.DynamicPluginProber {
	return flexvolume.GetDynamicPluginProber(plugins, runner)
}
