//go:build kubernetes1.32

package contract

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/volume/util/operationexecutor"
	volumetypes "k8s.io/kubernetes/pkg/volume/util/types"
)

// claimsTell tells whether a condition of the claim says why it did not grow.
const claimsTell = true

// generateExpand is what the controller runs with RecoverVolumeExpansionFailure, which is on by default.
func generateExpand(generator operationexecutor.OperationGenerator, claim *v1.PersistentVolumeClaim, persistent *v1.PersistentVolume) (volumetypes.GeneratedOperations, error) {
	return generator.GenerateExpandAndRecoverVolumeFunc(claim, persistent, "kubernetes.io/flexvolume")
}
