//go:build kubernetes1.34

package contract

import "k8s.io/mount-utils"

func (*host) GetMounter() mount.Interface { return mount.New("") }
