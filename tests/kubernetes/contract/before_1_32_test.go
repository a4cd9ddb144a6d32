//go:build !kubernetes1.32

package contract

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/volume/util/operationexecutor"
	volumetypes "k8s.io/kubernetes/pkg/volume/util/types"
)

// claimsTell tells whether a condition of the claim says why it did not grow.
const claimsTell = false

func generateExpand(generator operationexecutor.OperationGenerator, claim *v1.PersistentVolumeClaim, persistent *v1.PersistentVolume) (volumetypes.GeneratedOperations, error) {
	return generator.GenerateExpandVolumeFunc(claim, persistent)
}
